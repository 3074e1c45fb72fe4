"""PyTorch's ``torch.distributed`` on MPI: the backend "mpicoll", and how programs come to it.

Importing it registers the backend and ``init_method="mpi://"``, and starts nothing.  PyTorch from
2.5 on does so by itself where mpicoll is installed.
"""

from mpicoll.torch.registration import autoload, register

__all__ = ["autoload", "register"]

register()
