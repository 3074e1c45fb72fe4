"""The options of ``mpicoll bench``, on its command line and in the file of a sweep."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mpicoll.base.options import option
from mpicoll.base.wording import PARAMETER

#: Types in a file.
Size = int | str
Words = str | list[str]
#: Groups of options in the help.
SIZES, WHAT, HOW, OUT = "Sizes", "What is measured", "How it is measured", "Output"
FORMATS = ("nccl", "osu", "csv", "json")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is to be measured, as it is written; `mpicoll bench --help` says what each field is."""

    size: str | None = option(
        None,
        "Sizes to measure: 8,64K,1M, or 64K-64M (each 4 times the last).",
        "-s --size",
        group=SIZES,
        metavar="LIST",
        in_file=Size | list[Size],
    )
    minbytes: str | None = option(
        None, "First size; 8 if not given.", "-b --minbytes", SIZES, metavar="SIZE", in_file=Size
    )
    maxbytes: str | None = option(
        None, "Last size; 4M if not given.", "-e --maxbytes", SIZES, metavar="SIZE", in_file=Size
    )
    stepfactor: int | None = option(
        None, "Factor between sizes; 2 if not given.", "-f --stepfactor", SIZES, metavar="N"
    )
    stepbytes: str | None = option(
        None,
        "Difference between sizes, instead of a factor.",
        "-i --stepbytes",
        group=SIZES,
        metavar="SIZE",
        in_file=Size,
    )
    algorithms: str = option(
        "all", "Algorithms, or all.", "-a --algorithms", WHAT, metavar="LIST", in_file=Words
    )
    set_: list[str] | None = option(
        None, PARAMETER, "--set", WHAT, metavar="NAME=VALUE", in_file=dict[str, int | list[int]]
    )
    ranks: str | None = option(
        None,
        "Numbers of ranks: the first 2, 4 and 8 launched; all if not given.",
        "-P --ranks",
        group=WHAT,
        metavar="LIST",
        in_file=int | str | list[int],
    )
    datatype: str = option(
        "float",
        "Element types, as half,float,int32.",
        "-d --datatype",
        WHAT,
        metavar="LIST",
        in_file=Words,
    )
    op: str = option("sum", "Reduction: sum, max, min, prod, ...", "--op", WHAT, metavar="OP")
    root: int = option(0, "Root rank.", "-r --root", WHAT, metavar="RANK")
    in_place: bool = option(
        False, "Use one buffer for input and output where MPI allows it.", "--in-place", WHAT
    )
    skew: float = option(
        0.0,
        "Uneven blocks in v-variants: 1 - X to 1 + X times the mean.",
        group=WHAT,
        metavar="X",
    )
    device: str = option(
        "cpu", "Memory of the buffers: cpu, or gpu (with CuPy).", group=WHAT, metavar="NAME"
    )
    iterations: int | None = option(
        None,
        "Number of repetitions; until --precision if not given.",
        "-n --iterations",
        group=HOW,
        min=1,
        metavar="N",
    )
    warmup: int = option(
        5, "Calls before the first repetition.", "-w --warmup", HOW, min=0, max=100_000, metavar="N"
    )
    check: int = option(
        1,
        "1: check every element of the results; 0: do not.",
        "-c --check",
        group=HOW,
        min=0,
        max=1,
        metavar="N",
        in_file=bool,
    )
    cold: bool = option(
        False, "Use buffers that are not in the caches for each call.", "--cold", HOW
    )
    start: str = option(
        "barrier",
        "How ranks start together: barrier, or window (synchronised clocks).",
        group=HOW,
        metavar="HOW",
    )
    precision: float = option(
        0.025,
        "Stop when the 95 % interval is within this share of the median.",
        group=HOW,
        metavar="X",
    )
    point_seconds: float = option(
        2.0, "Most seconds for one point.", "--point-time", HOW, metavar="S"
    )
    budget: float | None = option(
        None, "Seconds for the whole sweep, shared among the points.", group=HOW, metavar="S"
    )
    seed: int | None = option(
        None,
        "Random seed for the order of points; a new seed if not given.",
        group=HOW,
        metavar="N",
    )
    timeout: float = option(
        120.0, "Give up after so many seconds without progress.", "-T --timeout", HOW, metavar="S"
    )
    output_file: Path | None = option(
        None,
        "Append the results as JSON lines.",
        "-J --output-file",
        OUT,
        metavar="FILE",
        in_file=None,
    )
    launch: int = option(
        0, "Number of this launch in the file.", "--launch-id", OUT, min=0, metavar="N"
    )
    resume: bool = option(
        False, "Measure only what the file of -J lacks.", "--resume", OUT, in_file=None
    )
    html: Path | None = option(
        None, "Write a page with plots.", "--html", OUT, metavar="FILE", in_file=None
    )
    format_: str = option(
        "nccl",
        f"Format of the table: {', '.join(FORMATS)}.",
        "--format",
        OUT,
        metavar="NAME",
        in_file=None,
    )
    full: bool = option(False, "Show more columns.", "--full", OUT, in_file=None)
    json: bool = option(False, "Print JSON; short for --format json.", "--json", OUT, in_file=None)
