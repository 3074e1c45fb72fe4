"""Measuring collectives: repetitions, statistics, results on disk, tables."""
