"""Which parallelism: the mesh, the schedule and the cut whose simulated step is shortest.

Costs come from a profile of the layers and from a model of the machine; nothing here needs MPI.
"""
