"""The options of ``mpicoll bench``, on its command line and in the file of a sweep."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mpicoll.base.options import option
from mpicoll.base.wording import PARAMETER

#: Types in a file.
Size = int | str
Words = str | list[str]
FORMATS = ("nccl", "osu", "csv", "json")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is to be measured, as it is written; `mpicoll bench --help` says what each field is."""

    minbytes: str = option(
        "8",
        "First size, or a list of sizes.",
        "-b --minbytes",
        metavar="SIZE",
        in_file=Size | list[Size],
    )
    maxbytes: str | None = option(
        None, "Last size; 4M if not given.", "-e --maxbytes", metavar="SIZE", in_file=Size
    )
    stepfactor: int | None = option(
        None, "From one size to the next; 2 if not given.", "-f --stepfactor"
    )
    stepbytes: str | None = option(
        None, "Step instead of a factor.", "-i --stepbytes", metavar="SIZE", in_file=Size
    )
    message_size: str | None = option(
        None, "Short for -b and -e.", "-m --message-size", metavar="MIN:MAX", in_file=None
    )
    algorithms: str = option(
        "all", "Algorithms, or all.", "-a --algorithms", metavar="LIST", in_file=Words
    )
    set_: list[str] | None = option(
        None, PARAMETER, "--set", metavar="NAME=VALUE", in_file=dict[str, int | list[int]]
    )
    datatype: str = option(
        "float", "As float or half,float,int32.", "-d --datatype", metavar="LIST", in_file=Words
    )
    ranks: str | None = option(
        None,
        "As 2,4,8: the first so many of the ranks launched; else all.",
        metavar="LIST",
        in_file=int | str | list[int],
    )
    op: str = option("sum", "As sum, max.", "-o --op")
    root: int = option(0, "Of rooted collectives.", "-r --root")
    iterations: int | None = option(
        None, "Exactly so many repetitions.", "-n --iters --iterations", min=1
    )
    warmup: int = option(
        5, "Calls before the first one.", "-w --warmup_iters --warmup", min=0, max=100_000
    )
    check: int = option(
        1, "0: do not check.", "-c --check --validation", min=0, max=1, in_file=bool
    )
    validation: bool = option(False, "The same as -c 1.", "--validation", in_file=None)
    in_place: bool = option(
        False, "One buffer for input and output, where there is a form.", "--in-place"
    )
    cold: bool = option(False, "Other buffers each time, beyond the last-level cache.", "--cold")
    start: str = option(
        "barrier", "How ranks begin together: barrier, or window (times on synchronised clocks)."
    )
    device: str = option("cpu", "Where the buffers are: cpu, or gpu (with CuPy).")
    skew: float = option(
        0.0, "Block lengths of the v-variants: 1 - SKEW to 1 + SKEW of their mean."
    )
    precision: float = option(
        0.025, "Stop when the 95 % interval is as narrow as this.", metavar="SHARE"
    )
    point_seconds: float = option(2.0, "Most seconds for one point.", "--point-time", metavar="S")
    budget: float | None = option(
        None, "Seconds for the whole sweep, shared among the points.", metavar="S"
    )
    seed: int | None = option(None, "Of the order of points; a new one if not given.")
    timeout: float = option(120.0, "Longest wait without progress.", "-T --timeout", metavar="S")
    output_file: Path | None = option(
        None, "Append results as JSON lines.", "-J --output_file", metavar="FILE", in_file=None
    )
    launch: int = option(0, "Number of this launch.", "--launch-id", min=0, metavar="K")
    resume: bool = option(
        False, "Measure what FILE does not have of this launch's sweep.", "--resume", in_file=None
    )
    html: Path | None = option(
        None, "Write a page with plots.", "--html", metavar="FILE", in_file=None
    )
    format_: str = option("nccl", f"Of the table: {', '.join(FORMATS)}.", "--format", in_file=None)
    full: bool = option(False, "More columns.", "--full", in_file=None)
    json: bool = option(False, "Short for --format json.", "--json", in_file=None)
