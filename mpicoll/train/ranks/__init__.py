"""The ranks that train together: who they are, who is alive, and how they wait for each other."""
