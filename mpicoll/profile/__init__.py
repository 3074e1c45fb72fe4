"""What a program's collectives cost: recorded, merged over ranks, and measured again.

``mpirun -n 4 python -m mpicoll.profile app.py`` runs a program of mpi4py as it is, with
communicators that write down every call.  Each rank appends what it has seen to a file of its own
(:mod:`mpicoll.profile.writer`); :mod:`mpicoll.profile.merged` puts the files together.
"""
