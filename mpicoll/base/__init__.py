"""What any room may need: words, files, launchers; it needs nothing of mpicoll but its errors."""
