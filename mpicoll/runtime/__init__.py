"""What one communicator keeps, how one call on it is carried out, and its time limit and checks."""
