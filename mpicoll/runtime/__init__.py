"""What one communicator keeps, and how one call on it is carried out."""
