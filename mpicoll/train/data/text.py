"""Texts as bytes: a sample is so many bytes in a row, and its targets are the bytes that follow.

`text` without a file is Python's own library, which every user has: the modules that are named
below, and are in all of Python 3.10 to 3.14. They are split by files, so that nothing of a file to
train on is in another set. Versions of Python have other texts under the same names: so a run says
from which Python its text is, and the SHA-256 of all of it, and is refused where ranks, or a
checkpoint, have another.
"""

from __future__ import annotations

import hashlib
import platform
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpicoll.train.data.datasets import PARTS, Dataset

Bytes = NDArray[np.uint8]

#: Bytes of a sample, unless others are asked for.
CONTEXT = 128
#: Values of a byte.
VOCABULARY = 256
#: Of a file, the share of each of validation and test.
SHARE = 20
#: Python and text of the figures in the documentation.
REFERENCE = ("3.11.7", "0814c3e2b59dc88f4d452d4ac4babee470f6ad19623f5be397c9a57506bb0167")

#: Modules, by package.
_MODULES = {
    "": """
        __future__ _collections_abc _compat_pickle _markupbase _py_abc _pydecimal _pyio
        _sitebuiltins _strptime _threading_local _weakrefset abc argparse ast base64 bdb bisect bz2
        cProfile calendar cmd code codecs codeop colorsys compileall configparser contextlib
        contextvars copy copyreg csv dataclasses decimal difflib dis doctest enum filecmp fileinput
        fnmatch fractions ftplib functools genericpath getopt getpass gettext glob graphlib gzip
        hashlib heapq hmac imaplib inspect io ipaddress keyword linecache locale lzma mailbox
        mimetypes modulefinder netrc ntpath numbers opcode operator optparse os pdb pickle
        pickletools pkgutil platform plistlib poplib posixpath pprint pstats pty py_compile pyclbr
        pydoc queue quopri random reprlib rlcompleter runpy sched secrets selectors shelve shlex
        shutil signal site smtplib socket socketserver ssl stat statistics stringprep struct
        subprocess symtable tabnanny tarfile tempfile textwrap threading timeit token tokenize trace
        traceback tracemalloc tty types typing uuid warnings wave weakref webbrowser zipapp
        zipimport
    """,
    "asyncio": """
        base_events base_futures base_subprocess base_tasks coroutines events exceptions
        format_helpers futures locks proactor_events protocols queues runners selector_events
        sslproto staggered streams subprocess tasks threads transports trsock unix_events
        windows_events windows_utils
    """,
    "collections": "__init__",
    "concurrent/futures": "_base process thread",
    "ctypes": "__init__ util",
    "dbm": "dumb",
    "email": """
        _encoded_words _header_value_parser _parseaddr _policybase base64mime charset contentmanager
        encoders errors feedparser generator header headerregistry iterators message parser policy
        quoprimime utils
    """,
    "html": "entities parser",
    "http": "__init__ client cookiejar cookies server",
    "importlib": "_bootstrap _bootstrap_external abc util",
    "json": "__init__ decoder encoder scanner tool",
    "logging": "__init__ config handlers",
    "multiprocessing": """
        connection context forkserver heap managers pool popen_fork process queues reduction
        resource_tracker shared_memory sharedctypes spawn synchronize util
    """,
    "unittest": "async_case case loader main mock result runner signals suite util",
    "urllib": "error parse request response robotparser",
    "wsgiref": "handlers headers simple_server util validate",
    "xml/dom": "domreg expatbuilder minidom pulldom xmlbuilder",
    "xml/etree": "ElementInclude ElementPath ElementTree",
    "xml/sax": "expatreader handler saxutils xmlreader",
    "xmlrpc": "client server",
    "zoneinfo": "_common _tzpath _zoneinfo",
}


def library_files() -> list[str]:
    """The files of Python's library that are the text, below its folder; in order."""
    return sorted(
        f"{package}/{module}.py".lstrip("/")
        for package, modules in _MODULES.items()
        for module in modules.split()
    )


def part_of(number: int) -> str:
    """The set that a file is in, by its number in the list: one in twenty is for each of two."""
    return {SHARE // 2 - 1: "validation", SHARE - 1: "test"}.get(number % SHARE, "train")


def load_library(context: int = CONTEXT, folder: Path | None = None) -> Dataset:
    """Python's own library.

    Args:
        context: Bytes of a sample.
        folder: Where it is; None for that of this Python.

    Raises:
        ValueError: Too little of it is there, or the context is too long.
    """
    folder = folder or Path(sysconfig.get_path("stdlib"))
    texts: dict[str, list[bytes]] = {part: [] for part in PARTS}
    absent = []
    for number, name in enumerate(library_files()):
        path = folder / name
        if path.is_file():
            texts[part_of(number)].append(path.read_bytes())
        else:
            absent.append(name)
    whole = {part: b"".join(found) for part, found in texts.items()}
    digest = hashlib.sha256(b"".join(whole.values())).hexdigest()
    count = sum(map(len, texts.values()))
    about = f"{count} files of Python {platform.python_version()}, SHA-256 {digest[:16]}"
    if absent:
        about += f", without {', '.join(absent[:3])}{', ...' if len(absent) > 3 else ''}"
    if digest != REFERENCE[1]:
        about += f"; the documentation's figures are of Python {REFERENCE[0]}, {REFERENCE[1][:16]}"
    arrays = {part: np.frombuffer(found, np.uint8) for part, found in whole.items()}
    return from_bytes("text", arrays, context, f"Python's library in {folder}", about)


def load_file(path: Path, context: int = CONTEXT) -> Dataset:
    """A text of one's own, mapped into memory: its last tenth is for validation and test.

    Raises:
        OSError: It is missing or cannot be read.
        ValueError: It is empty, or too short for the context.
    """
    size = path.stat().st_size
    if not size:
        raise ValueError(f"{path} is empty: give a text")
    whole: Bytes = np.memmap(path, np.uint8, "r")
    share = size // SHARE
    ends = {"train": size - 2 * share, "validation": size - share, "test": size}
    starts = dict(zip(PARTS, (0, *ends.values()), strict=False))
    arrays = {part: whole[starts[part] : ends[part]] for part in PARTS}
    return from_bytes("text", arrays, context, str(path), f"{path.name}, {size:,} bytes")


def from_bytes(
    name: str, arrays: dict[str, Bytes], context: int, where: str, about: str
) -> Dataset:
    """Samples of texts, which follow each other; the rest of a text is left out.

    Nothing is copied: inputs and targets are views of the text.

    Raises:
        ValueError: A text is too short for one sample.
    """
    sets: dict[str, Any] = {}
    for part, text in arrays.items():
        count = (len(text) - 1) // context
        if count < 1:
            raise ValueError(
                f"{where}: the text for {part} has {len(text)} bytes, and a sample with a context "
                f"of {context} needs {context + 1}: give a longer text, or a smaller context"
            )
        sets[f"{part}_inputs"] = text[: count * context].reshape(count, context)
        sets[f"{part}_targets"] = text[1 : count * context + 1].reshape(count, context)
    return Dataset(name, VOCABULARY, vocabulary=VOCABULARY, about=about, **sets)
