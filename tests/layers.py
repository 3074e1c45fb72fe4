"""The order of the rooms of mpicoll, and what reads the imports of its files.

``python tests/layers.py`` prints imports that point upwards, circles, and files without a floor.
test_layers.py fails on them, and the documentation draws its map from the same list and imports.
Files are passed as texts, so that tests can plant faults.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: The floors of each package, roof first.  What stands on one floor does not import each other.
#: A file without a floor in a package that is listed here is an error; in the other packages files
#: import each other freely, but for circles.
ORDER = {
    "mpicoll": """
        __main__
        cli
        report
        profile
        model
        torch
        train bench
        __init__
        comm
        requests
        runtime
        synthesis tuning
        files
        draw local verify
        engine simulate
        buffers algorithms
        cuda registry
        ops schedule
        _kernels
        base
        errors hooks
    """,
    "mpicoll.comm": (
        "arrays > __init__ > intracomm > inspection survival objects > "
        "nonblocking persistent passed blocking handle > "
        "dispatch messages > decisions compiled > device refusing job"
    ),
    "mpicoll.requests": "__init__ device > library own > standalone > several > base",
    "mpicoll.runtime": (
        "__init__ > relay > staging observe recovery > state arguments > "
        "connections first_calls > fast_path > plans admission > guard > alarm calls > "
        "agree watch trace family handles unavailable > settings places > schedules"
    ),
    "mpicoll.engine": (
        "__init__ > windows > transport > _starter _messages > _methods > _fast_path > _routes > "
        "_attributes _packing _library _flight > _signature > _datatypes > "
        "_execution > _folding > _program > _transport > "
        "scaling > runner lowering planning > rows > plan lanes > spans progress"
    ),
    "mpicoll.buffers": (
        "__init__ > buckets vectors > pair > parsing > datatypes > buffer > "
        "staged device_packing > packing typemaps integers"
    ),
    "mpicoll.cuda": (
        "__init__ > streams group > folds arrays pinned pieces ipc > kernels driver links "
        "registered windows _launch > launches > keys liveness transports _driver"
    ),
    "mpicoll.simulate": (
        "__init__ > simulation > compiled rounds critical_path > clock > machine > "
        "symmetry costs ports _clock > network known_networks"
    ),
    "mpicoll.profile": (
        "__main__ > __init__ > launch words > replay > merged > waiting writer > "
        "classes > methods > requests > recorder foreign > calls"
    ),
    "mpicoll.torch": (
        "__main__ > __init__ > registration > creation > rendezvous group > "
        "messages moving reducing > reductions base > tensors turns > work"
    ),
    "mpicoll.train": (
        "__init__ > search exits > driver > pytorch jax distributed planner > strategies > "
        "config > servers parallel > exchange > ranks > models > data > groups > "
        "optimizers schedules history > records heap threads options registry step"
    ),
    "mpicoll.train.step": (
        "__init__ > registered picture checking > timing > catalogue core > orders passes > tasks"
    ),
    "mpicoll.train.search": (
        "__init__ > console > loop > coordinator > crews > trials jobs > methods > "
        "space data > options"
    ),
    "mpicoll.train.exits": "__init__ > serve > node > stages letters > layout",
    "mpicoll.train.data": (
        "__init__ feeds loaders > catalogue trigram > pictures text > own > datasets > "
        "augment numpy_files idx_files targets > draws batch rows sampler"
    ),
    "mpicoll.train.parallel": (
        "__init__ > pipeline > communication > runner > replicas > memory > "
        "timeline checks agreement > executor > stage layer_weights piece_sums > "
        "weights sums wires program > mesh stages layer_times > "
        "shards parts fully_sharded > passes > "
        "rules parameter_shards > sharded gathered pieces > units conjugate > placements traffic"
    ),
    "mpicoll.train.planner": (
        "__init__ > comparison > search needs accepted > bounds plan_file modelled > problem > "
        "replicas space measured cluster > flops profile layers"
    ),
    "mpicoll.train.exchange": "__init__ > buckets > transfers > tree wire layer_sums norms",
    "mpicoll.train.ranks": (
        "__init__ > members > guarded survivors > health stacks > workers > mail > waiting signals"
    ),
    "mpicoll.train.servers": "__init__ > replica > client server > shard > messages consistency",
    "mpicoll.train.strategies": (
        "__init__ > parameter_server apart fully_sharded > allreduce server_trainer > "
        "lockstep placement meshed > protocol stage_trainer > stage_state > "
        "retained training shared > copies gradients balance mixing evaluated holding > "
        "kept buffers"
    ),
    "mpicoll.train.driver": (
        "__init__ > console > loop evaluation > attempt > epochs > "
        "observers > checkpointing data_servers trained progress explained printer > preparation > "
        "cutting > board metrics checkpoints bits memory measuring > array_files callbacks seating "
        "fence recovery failure_detector first_format parity predicted config_file named"
    ),
}

#: Imports upward.  ``mpicoll.cuda.empty`` needs communicators, imported when it is asked for;
#: ``python -m mpicoll.profile`` ends with what the command ``mpicoll profile`` prints.
DOORS = {
    ("mpicoll.cuda.__init__", "mpicoll.comm.arrays"),
    ("mpicoll.profile.__main__", "mpicoll.cli.__init__"),
}

#: Rooms and files that need the standard library alone: neither NumPy nor MPI.
PURE = (
    *("mpicoll.schedule", "mpicoll.registry", "mpicoll.algorithms", "mpicoll.simulate"),
    *("mpicoll.verify", "mpicoll.draw", "mpicoll.errors", "mpicoll.hooks", "mpicoll.base.wording"),
    "mpicoll.train.step",
)
#: But for these, which are imported when they are used.
NOT_PURE = tuple(f"mpicoll.simulate.{name}" for name in ("compiled", "_clock", "rounds"))

#: Text by path from the root, as of mpicoll/comm/__init__.py.
Files = dict[str, str]
#: The files that each file imports; of mpicoll.comm it is mpicoll.comm.__init__.
Graph = dict[str, set[str]]


# --- reading imports ------------------------------------------------------------------------------


def file_name(path: str) -> str:
    return path.rpartition(".")[0].replace("/", ".")


def tree_of(path: str, text: str) -> ast.Module:
    """The tree of a file; of Cython's, its imports and its strings alone, as Python's."""
    if path.endswith((".py", ".pyi")):
        return ast.parse(text)
    text = re.sub(r"\\\n", " ", re.sub(r"#.*", "", text))
    lines = re.findall(r"^[ \t]*((?:from\s+[\w.]+\s+)?c?import\b\s*(?:\([^)]*\)|.*))", text, re.M)
    lines += re.findall(r"""["']mpicoll\.[\w.]+["']""", text)
    return ast.parse("\n".join(re.sub(r"\bcimport\b", "import", line) for line in lines))


def nodes(tree: ast.AST, everywhere: bool) -> Iterator[ast.AST]:
    """What is in a tree; unless ``everywhere``, only what is run when its module is imported."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda() if not everywhere:
                continue
            case ast.If(test=test) if not everywhere and "TYPE_CHECKING" in ast.unparse(test):
                continue
            case ast.Assign(targets=[ast.Name(id="_HOMES")]) if not everywhere:
                continue
            # What lies beside a package is read, not imported.
            case ast.Call(func=ast.Attribute(attr="files")):
                continue
        yield node
        yield from nodes(node, everywhere)


def imports(path: str, text: str, everywhere: bool = True) -> Iterator[tuple[str, str]]:
    """Module and name of each import: ``("a.b", "c")`` for ``from a.b import c``, ``("a.b", "")``
    for ``import a.b``, for ``"a.b"`` as a string, and for an entry of ``_HOMES``."""
    package = file_name(path).split(".")[:-1]

    def absolute(level: int, name: str) -> str:
        return ".".join([*package[: len(package) - level + 1], name]).rstrip(".") if level else name

    for node in nodes(tree_of(path, text), everywhere):
        match node:
            case ast.Import(names=names):
                yield from ((alias.name, "") for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                yield from ((absolute(level, module or ""), alias.name) for alias in names)
            case ast.Assign(targets=[ast.Name(id="_HOMES")], value=ast.Dict(values=homes)):
                yield from ((absolute(1, ast.literal_eval(home)), "") for home in homes)
            case ast.Constant(value=str(name)) if re.fullmatch(r"mpicoll(\.\w+)+", name):
                yield name, ""
            case ast.Call(args=[ast.Constant(value=str(name)), *_]) if is_import(node):
                yield absolute(len(name) - len(name.lstrip(".")), name.lstrip(".")), ""


def is_import(call: ast.Call) -> bool:
    name = getattr(call.func, "attr", getattr(call.func, "id", None))
    return name in ("import_module", "__import__")


def computes_imports(path: str, text: str) -> bool:
    """Whether a file imports a module by another name than one that it writes down."""
    calls = (node for node in nodes(tree_of(path, text), True) if isinstance(node, ast.Call))
    return any(
        is_import(call) and not (call.args and isinstance(call.args[0], ast.Constant))
        for call in calls
    )


def graph(files: Files, everywhere: bool = True) -> Graph:
    """Which file imports which; names that a package offers are taken from its ``__init__``."""
    found: Graph = {file_name(path): set() for path in files}
    for path, text in files.items():
        for module, name in imports(path, text, everywhere):
            names = (f"{module}.{name}", f"{module}.{name}.__init__", module, f"{module}.__init__")
            found[file_name(path)].update([n for n in names if n in found][:1])
    return {file: targets - {file} for file, targets in found.items()}


# --- rules ----------------------------------------------------------------------------------------


def floors(order: dict[str, str]) -> dict[str, int]:
    """The floor of everything that has one, from the ground up."""
    return {
        f"{package}.{name}": -number
        for package, lines in order.items()
        for number, floor in enumerate(re.split(r"[\n>]", lines.strip()))
        for name in floor.split()
    }


def without_floor(files: Files, order: dict[str, str]) -> set[str]:
    """Rooms and files that the order of their package leaves out."""
    found = set()
    for parts in (file_name(path).split(".") for path in files):
        for depth in range(1, len(parts)):
            if ".".join(parts[:depth]) in order:
                found.add(".".join(parts[: depth + 1]))
    return found - set(floors(order))


def upward(found: Graph, order: dict[str, str]) -> list[str]:
    """Imports that do not point downwards, where both ends have a floor in the same package."""
    floor = floors(order)
    wrong = []
    for file, targets in found.items():
        for target in targets:
            pairs = zip(file.split("."), target.split("."), strict=False)
            depth = next(i for i, (a, b) in enumerate(pairs) if a != b) + 1
            here, there = (".".join(name.split(".")[:depth]) for name in (file, target))
            if here in floor and there in floor and floor[there] >= floor[here]:
                wrong.append(f"{file} imports {target}")
    return sorted(wrong)


def circles(found: Graph) -> list[list[str]]:
    """Files that import each other, by way of others too: Tarjan's strongly connected parts."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_files: list[str] = []
    circles = []

    def visit(file: str) -> None:
        number[file] = lowest[file] = len(number)
        open_files.append(file)
        for target in sorted(found[file]):
            if target not in number:
                visit(target)
            if target in open_files:
                lowest[file] = min(lowest[file], lowest[target])
        if lowest[file] == number[file]:
            at = open_files.index(file)
            circles.append(sorted(open_files[at:]))
            del open_files[at:]

    for file in sorted(found):
        if file not in number:
            visit(file)
    return [circle for circle in circles if len(circle) > 1]


def impure(files: Files, pure: Collection[str], but: Collection[str] = ()) -> list[str]:
    """What files of pure rooms load when they are imported, themselves or by what they import and
    the packages it lies in, that is not of the standard library."""
    found = graph(files, everywhere=False)
    loads = {
        file_name(path): {module.split(".")[0] for module, _ in imports(path, text, False)}
        for path, text in files.items()
    }
    wrong = []
    for start in sorted(found):
        if start in but or not any(f"{start}.".startswith(f"{room}.") for room in pure):
            continue
        reached, left = set(), {start}
        while left:
            file = left.pop()
            reached.add(file)
            parts = file.split(".")
            packages = {".".join([*parts[:n], "__init__"]) for n in range(1, len(parts))}
            left |= (found[file] | packages & set(found)) - reached
        outside = set().union(*(loads[file] for file in reached)) - set(sys.stdlib_module_names)
        wrong += [f"{start} needs {name}" for name in sorted(outside - {start.split(".")[0]})]
    return wrong


# --- the package ----------------------------------------------------------------------------------


@cache
def sources() -> Files:
    """Every file of the package that can import."""
    paths = (p for p in sorted(ROOT.glob("mpicoll/**/*.py*")) if p.suffix not in (".pyc", ".pyo"))
    return {p.relative_to(ROOT).as_posix(): p.read_text() for p in paths if p.is_file()}


@cache
def package() -> Graph:
    """What files of the package import, but for the doors."""
    found = graph(sources())
    return {file: {t for t in found[file] if (file, t) not in DOORS} for file in found}


if __name__ == "__main__":
    found = package()
    print(*upward(found, ORDER), *map(" <-> ".join, circles(found)), sep="\n")
    print(*(f"{name} has no floor" for name in sorted(without_floor(sources(), ORDER))), sep="\n")
