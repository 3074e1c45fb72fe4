"""Files and folders that one job at a time may write to."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import time
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

_NAP = 0.05


class Lock:
    """Keeps a file or a folder to this process until `release`, or until the process ends.

    A hidden file in the folder, or beside the file, is locked and says who holds it.  Devices and
    pipes are not locked, nor is what lies where files cannot be made or locked.

    Args:
        path: A folder, or a file that need not be there.
        patience: Seconds to wait for another holder; ranks of a killed job may live on for a
            moment.
        after: The claim of a holder of the same job, who may still be there: its place is taken.

    Raises:
        OSError: Another process holds it, by EBUSY; the message names that one.
    """

    def __init__(
        self, path: Path | str, patience: float = 10.0, after: Claim | None = None
    ) -> None:
        self._path, self._descriptor = _lock_file(Path(path)), -1
        if self._path is None:
            return
        if after is not None and after.is_current():
            self._replace(self._path)
            return
        deadline = time.monotonic() + patience
        while not self._take(self._path):
            if time.monotonic() > deadline:
                raise OSError(
                    errno.EBUSY,
                    f"{_holder(self._path)} writes to it; wait until that has ended, or write "
                    "elsewhere",
                    str(path),
                )
            time.sleep(_NAP)

    def _take(self, path: Path) -> bool:
        """Whether the lock is this process's, or cannot be anybody's."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:  # what is to be written there will say why
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last holder may have removed the file between the two calls.
            if not _is_same(descriptor, path):
                raise FileNotFoundError
        except (BlockingIOError, FileNotFoundError):
            os.close(descriptor)
            return False
        except OSError:  # some file systems have no locks
            os.close(descriptor)
            return True
        os.ftruncate(descriptor, 0)
        os.write(descriptor, _own_name().encode())
        self._descriptor = descriptor
        return True

    def _replace(self, path: Path) -> None:
        """Lock a new file and put it in the place of the old one, whoever holds that."""
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        if not self._take(draft) or self._descriptor < 0:
            raise OSError(errno.EBUSY, f"{_holder(draft)} writes to it", str(path))
        os.replace(draft, path)

    def release(self) -> None:
        """Let others write; releasing twice does nothing."""
        if self._descriptor < 0 or self._path is None:
            return
        with suppress(OSError):
            if _is_same(self._descriptor, self._path):
                os.unlink(self._path)  # while it is still locked
        os.close(self._descriptor)
        self._descriptor = -1


def is_held(path: Path | str) -> bool:
    """Whether some process keeps a file or a folder to itself now."""
    lock = _lock_file(Path(path))
    if lock is None:
        return False
    try:
        with open(lock, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # nobody has made it, or some file systems have no locks
        return False
    return False


class Claim:
    """Which process holds a file or a folder now, so that one can see whether it still does.

    Args:
        path: As of `Lock`; somebody holds it, or it cannot be locked.
    """

    def __init__(self, path: Path | str) -> None:
        self._path, self._descriptor = _lock_file(Path(path)), -1
        if self._path is not None:
            with suppress(OSError):
                # An open file keeps its number, so that no later one has the same.
                self._descriptor = os.open(self._path, os.O_RDONLY)
        self._name = self._read()

    def is_current(self) -> bool:
        """Whether nobody has taken the holder's place; always, where there was no lock."""
        if self._descriptor < 0 or self._path is None:
            return True
        return _is_same(self._descriptor, self._path) and self._read() == self._name

    def _read(self) -> bytes:
        """The holder's name: the next holder of the same file has another."""
        return os.pread(self._descriptor, 256, 0) if self._descriptor >= 0 else b""

    def close(self) -> None:
        """Look no more; closing twice does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _is_same(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one that has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _lock_file(path: Path) -> Path | None:
    if path.is_dir():
        return path / ".lock"
    if path.exists() and not path.is_file():
        return None
    return path.with_name(f".{path.name}.lock")


def _own_name() -> str:
    job = os.environ.get("SLURM_JOB_ID")
    return (
        f"{f'job {job}, ' if job else ''}process {os.getpid()} on {platform.node()} "
        f"(since {datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} UTC)"
    )


def _holder(path: Path) -> str:
    with suppress(OSError):
        name = path.read_text(encoding="utf-8", errors="replace").strip()
        if name:
            return name
    return "another process"
