"""Hyperparameter search: what to try, by which method, on which ranks, and what came of it."""
