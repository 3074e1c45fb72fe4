"""Making schedules for a machine: bounds, trees, and the search among what the clock prefers."""
