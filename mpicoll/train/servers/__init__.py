"""The mechanism of parameter servers; it knows no configuration."""
