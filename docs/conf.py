"""Configuration of Sphinx: ``make docs``.

Some pages are written at the start of a build, into docs/generated: the algorithms from the
catalogue, the command from its help texts, the map of the rooms from the imports of all files,
measurements and pictures from benchmarks/results.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from pathlib import Path
from typing import Any

import mpi4py

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "tests")]

#: Characters of a line that a page shows without scrolling.
os.environ["COLUMNS"] = "86"

# Documentation is built without ranks: nothing may start MPI.
mpi4py.rc.initialize = False
mpi4py.rc.finalize = False

import call_costs  # noqa: E402
import catalogue  # noqa: E402
import command  # noqa: E402
import home  # noqa: E402
import inter_intra_figures  # noqa: E402
import kernel_speeds  # noqa: E402
import measured  # noqa: E402
import mesh_tables  # noqa: E402
import networks  # noqa: E402
import pipeline_figures  # noqa: E402
import plan_figures  # noqa: E402
import profile_costs  # noqa: E402
import record_tables  # noqa: E402
import rooms  # noqa: E402
import search_figures  # noqa: E402
import sharding_figures  # noqa: E402
import synthesis_figures  # noqa: E402
import training_figures  # noqa: E402
from sphinx.pycode import ModuleAnalyzer  # noqa: E402

import mpicoll  # noqa: E402
from mpicoll import algorithms, draw  # noqa: E402
from mpicoll.train import Config  # noqa: E402
from mpicoll.train.options import Options  # noqa: E402

project = "mpicoll"
version = release = mpicoll.__version__
copyright = "the authors of mpicoll"
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "**.inc"]
html_theme = "furo"
html_title = f"mpicoll {release}"
html_show_sphinx = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["mpicoll.css"]
highlight_language = "none"
autodoc_mock_imports = ["torch", "jax"]
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
#: Attributes of a class stand in its docstring.
napoleon_use_ivar = True
napoleon_attr_annotations = False
# Names of types stay names.
autodoc_type_aliases = {
    name: name for name in ("Block", "Count", "Formula", "Parameter", "Rounds", "Schedule", "Value")
}
autodoc_type_aliases["npt.DTypeLike"] = "numpy.typing.DTypeLike"

GENERATED = HERE / "generated"


def generate(app: Any) -> None:
    """Write the pages that are not kept, and remove those of entries that are gone."""
    GENERATED.mkdir(exist_ok=True)
    measurements = {**measured.pages(), **kernel_speeds.pages(), **call_costs.pages()}
    measurements |= profile_costs.pages()
    tables = {**catalogue.pages(), **networks.pages(), **measurements}
    drawn_rooms = {"rooms.svg": rooms.svg(), "rooms.inc": rooms.table()}
    texts = {**tables, **drawn_rooms, "command.inc": command.reference()}
    texts |= {**synthesis_figures.session(), **pipeline_figures.pages(), **plan_figures.pages()}
    texts |= {**mesh_tables.pages(), **search_figures.pages(), **inter_intra_figures.pages()}
    texts |= {**record_tables.pages(), **sharding_figures.pages()}
    plots = [*measured.draw(GENERATED), *training_figures.draw(GENERATED)]
    plots += [*home.draw(GENERATED), *inter_intra_figures.draw(GENERATED)]
    plots += [*synthesis_figures.draw(GENERATED), *pipeline_figures.draw(GENERATED)]
    drawn = {catalogue.drawing(entry): entry for entry in algorithms.catalogue()}
    for path in GENERATED.iterdir():
        if path.name not in texts | drawn and path.name not in plots:
            path.unlink()
    for name, text in texts.items():
        path = GENERATED / name
        # Sphinx builds again what has changed.
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    for name, entry in drawn.items():
        draw.svg(GENERATED / name, entry, catalogue.DRAWN, 0, catalogue.shown(entry))


def is_field(app: Any, what: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """Leave out the fields of named tuples: their class has said what they are."""
    return True if str(member.__doc__).startswith("Alias for field number") else None


def with_fields(app: Any, what: str, name: str, item: Any, options: Any, lines: list[str]) -> None:
    """The fields of a run's configuration: the command's help, and what stands below each."""
    if item is not Config:
        return
    below = ModuleAnalyzer.for_module(Options.__module__).find_attr_docs()
    text = ["Attributes:"]
    for field in dataclasses.fields(Options):
        words = [field.metadata["help"], *below.get((Options.__name__, field.name), ())]
        words[0] = re.sub(r"--([a-z-]+)", lambda m: f"`{m[1].replace('-', '_')}`", words[0])
        words.append(f"Default: ``{field.default!r}``.")
        text.append(f"    {field.name}: {' '.join(words)}")
    at = lines.index("Raises:")
    lines[at:at] = [*text, ""]


def with_names(
    app: Any, what: str, name: str, item: Any, options: Any, signature: str, returned: str
) -> tuple[str, str]:
    """Names of types in a signature as they are, also within other types."""
    first, last = (
        text and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", text)
        for text in (signature, returned)
    )
    return first, last


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", with_fields, priority=400)  # before napoleon
    app.connect("autodoc-process-signature", with_names)
    app.connect("autodoc-skip-member", is_field)
    app.connect("builder-inited", generate)
