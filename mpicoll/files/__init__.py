"""Files that describe machines, and schedules as data."""
