"""Buffers in the memory of CUDA devices: what they are, and how their messages travel.

Nothing here imports CuPy, PyTorch or another library of arrays: where a program brings one, its
arrays are taken.  The driver's library is opened when the first array in device memory comes.
"""
