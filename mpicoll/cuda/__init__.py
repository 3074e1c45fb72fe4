"""Collectives of arrays in GPU memory."""
