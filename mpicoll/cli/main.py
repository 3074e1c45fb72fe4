"""The command's frame: which rank speaks, what an error looks like, how the job ends."""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mpicoll.base.launcher import launch
from mpicoll.base.sleeping import meet
from mpicoll.cli import output, session
from mpicoll.cli.errors import RankError, UsageError, describe

#: Subcommands that are run by all ranks together; of the others only rank 0 does anything.
COLLECTIVE_COMMANDS = ("bench", "train", "search", "tiers", "evaluate", "doctor", "links")

#: Others are, too, with an option.
MEASURING = (
    ("synthesize", "--measure"),
    ("tune", "--search"),
    ("profile", "--replay"),
    ("plan", "--measure"),
)

#: Options whose value may be left out; with one they are written with an equals sign.
SHORT_FOR = {"--invariant": "--invariant=16"}

FAILED, MISUSED, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141

#: Seconds that a rank without MPI waits for rank 0 to say why.
_PATIENCE = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Words of the command line after the command's name; those of this process by
            default.

    Returns:
        The exit status: 0 done, 1 a fact that is not as it should be or a failure, 2 wrong usage,
        130 interrupted.
    """
    words = [SHORT_FOR.get(w, w) for w in (sys.argv[1:] if arguments is None else arguments)]
    together = bool(words) and words[0] in COLLECTIVE_COMMANDS
    together |= any(
        words[:1] == [name] and any(w.startswith(option) for w in words)
        for name, option in MEASURING
    )
    rank = launch().rank
    if rank and not together:
        return 0
    if rank:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open until the process ends
    output.spare_signs()
    try:
        # Without a subcommand there is nothing to do but to say what there is.
        with _interrupts_heard():
            status = _run(words) if words else max(MISUSED, _run(["--help"]))
            sys.stdout.flush()
        # The first of ranks that are alone has said why, or is about to: see `_say_misuse`.
        return 0 if rank and session.alone() else status
    except UsageError as error:
        several = together and launch().size != 1
        return _say_misuse(str(error), rank, several)
    except BrokenPipeError:
        # Nobody reads any more. Python would complain about what is still buffered at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        _end_job(INTERRUPTED)
        return INTERRUPTED
    except (RankError, OSError) as error:
        output.remark(f"mpicoll: error: {_with_rank(describe(error))}")
        _end_job(FAILED)
        return FAILED
    except MemoryError as error:
        reason = f"out of memory: {error}".removesuffix(": ")
        remedy = "take smaller sizes, fewer ranks of a node, or a machine with more memory"
        output.remark(f"mpicoll: error: {_with_rank(f'{reason}; {remedy}')}")
        _end_job(FAILED)
        return FAILED
    except Exception:
        sys.stderr.write(_with_rank(traceback.format_exc()))
        _end_job(FAILED)
        return FAILED


def _say_misuse(words: str, rank: int, several: bool) -> int:
    """Say a usage error once, by rank 0; the exit status.

    A launcher ends all ranks when one leaves with an error, perhaps before rank 0 has come to this.
    So all meet first.  Where MPI does not join them, the others leave without an error.
    """
    if not several:
        output.remark(f"mpicoll: error: {words}")
        return MISUSED
    try:
        comm = session.load()
    except UsageError:
        if rank:
            time.sleep(
                _PATIENCE
            )  # rank 0 has no MPI either, says so, and the launcher ends this one
        output.remark(f"mpicoll: error: {words}")
        return MISUSED
    words = session.common(comm, words)
    if rank == 0:
        output.remark(f"mpicoll: error: {words}")
    if session.alone():
        return 0 if rank else MISUSED
    meet(comm)
    return MISUSED


@contextmanager
def _interrupts_heard() -> Iterator[None]:
    """Hear also a Ctrl-C that comes where Python drops exceptions, with the end of an object.

    A generator that is not read to its end is such an object.
    """
    before = sys.unraisablehook

    def hook(dropped: sys.UnraisableHookArgs) -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            again = threading.Timer(0.01, _thread.interrupt_main)  # once this has returned
            again.daemon = True
            again.start()
        else:
            before(dropped)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def _run(words: list[str]) -> int:
    """Parse the words and run the subcommand; its exit status."""
    import typer
    from typer.main import get_command

    from mpicoll.cli.app import app

    command = get_command(app)
    try:
        with command.make_context("mpicoll", words) as context:
            return command.invoke(context) or 0
    except typer.Exit as leave:
        return leave.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as error:
        # Usage errors of the parser; their class has moved between releases of typer.
        if getattr(error, "exit_code", None) == MISUSED and hasattr(error, "format_message"):
            raise UsageError(_of_parser(error)) from None
        raise


def _of_parser(error: Exception) -> str:
    """A usage error of the parser as one line that names the remedy."""
    message = " ".join(error.format_message().split()).rstrip(".")  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "mpicoll"
    see = " See" if message.endswith("?") else "; see"
    return f"{message[:1].lower()}{message[1:]}{see} `{path} --help`"


def _with_rank(message: str) -> str:
    """The message with this rank before each line, if there are others."""
    rank = _rank()
    if rank is None:
        return message
    return "".join(f"[rank {rank}] {line}" for line in message.splitlines(keepends=True))


def _end_job(status: int) -> None:
    """Under mpirun, end all ranks: the others may wait for this one for ever."""
    if _rank() is not None:
        from mpicoll.comm import end_job

        end_job(status)


def _rank() -> int | None:
    """This rank in a running MPI job of several; MPI is not initialised for this."""
    if "mpi4py.MPI" not in sys.modules:
        return None
    from mpi4py import MPI

    if not MPI.Is_initialized() or MPI.Is_finalized() or MPI.COMM_WORLD.Get_size() == 1:
        return None
    return MPI.COMM_WORLD.Get_rank()
