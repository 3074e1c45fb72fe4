"""What any room may need and what needs nothing of mpicoll but its errors."""
