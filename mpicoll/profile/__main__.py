"""Run a program of mpi4py as it is, and record its collectives:

    mpirun -n 4 python -m mpicoll.profile [options] script.py [arguments]     (or -m module)

Options, before the script:

    -o, --output FOLDER   where files go, one a rank; else a new folder, named after the time
    --html FILE           write a page, too
    --replay              afterwards measure what the costliest calls would take by other
                          algorithms, on the same ranks: some seconds for each of five
    --through-mpicoll     let the program's communicators be mpicoll's, so that MPICOLL_ALLREDUCE
                          and the like choose algorithms, and no line of it is changed
    -h, --help            this text

An exception on any rank ends the whole job; what was recorded until then is kept.
`mpicoll profile FOLDER` shows a profile again.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn, TextIO

from mpicoll.base.launcher import launch

#: Exit status of wrong usage.
_MISUSED = 2


class _Parser(argparse.ArgumentParser):
    """Says what is wrong once, not by every rank."""

    def error(self, message: str) -> NoReturn:
        text = f"mpicoll.profile: error: {message}; -h shows the options"
        sys.exit(_from_rank_0(text, sys.stderr, _MISUSED))


def _from_rank_0(text: str, to: TextIO, status: int) -> int:
    """Print once, before MPI starts; this rank's exit status.

    Only rank 0 leaves with a status that says a failure: launchers end all ranks at the first one,
    which would end rank 0 before it has printed.
    """
    if launch().rank != 0:
        return 0
    print(text, file=to, flush=True)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m mpicoll.profile", add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--html", type=Path)
    parser.add_argument("--replay", action="store_true")
    parser.add_argument("--through-mpicoll", action="store_true")
    return parser


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """The options, and the program's words: a script, or ``-m`` and ``-c`` with what follows."""
    valued = ("-o", "--output", "--html")
    place = 0
    while place < len(words):
        word = words[place]
        if word in ("-m", "-c", "-") or not word.startswith("-"):
            break
        place += 2 if word in valued else 1
    return words[:place], words[place:]


def main() -> int:
    """Run what the command line asks for; its exit status."""
    before, program = _split(sys.argv[1:])
    options = _parser().parse_args(before)
    if options.help or not program or program in (["-m"], ["-c"]):
        return _from_rank_0(str(__doc__), sys.stdout, 0 if options.help else _MISUSED)
    from mpi4py import run

    from mpicoll.profile.launch import Launch

    try:
        profile = Launch(options.output, program, options.through_mpicoll)
    except ValueError as error:
        if launch().rank == 0:
            sys.stderr.write(f"mpicoll.profile: error: {error}\n")
        return _MISUSED
    try:
        run.run_command_line(program)
    except SystemExit as leave:
        if leave.code:
            profile.fail()
            run.set_abort_status(leave)
            raise
    except BaseException as error:
        profile.fail()
        run.set_abort_status(error)
        raise
    profile.end()
    if profile.problem:
        sys.stderr.write(f"mpicoll.profile: error: what was recorded is lost: {profile.problem}\n")
    sys.stdout.flush()
    from mpicoll import cli

    words = ["profile", os.fspath(profile.folder)]
    words += [] if options.html is None else ["--html", os.fspath(options.html)]
    return cli.main([*words, *(["--replay"] if options.replay else [])])


if __name__ == "__main__":
    sys.exit(main())
