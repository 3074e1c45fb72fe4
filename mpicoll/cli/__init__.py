"""The ``mpicoll`` command: its subcommands, their options, what they print.

Each subcommand is a module; it imports what it needs when it is run, so that the command starts
quickly, and so that ``list``, ``verify``, ``show`` and ``simulate`` run where no MPI is installed.
Facts go to standard output, progress and errors to standard error, both from rank 0 alone.
"""

from mpicoll.cli.main import main

__all__ = ["main"]
