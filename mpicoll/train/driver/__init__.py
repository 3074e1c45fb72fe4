"""A run from its configuration to its result: the loop, what it prints and what it keeps."""
