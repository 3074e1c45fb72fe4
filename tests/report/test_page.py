"""Reports: what is in them, and that a page fetches nothing and runs nothing from a file."""

import html.parser
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest
from synthetic import launched, seconds

from mpicoll import cli
from mpicoll.bench.records import Run, Writer
from mpicoll.bench.stats import summarise
from mpicoll.model import build
from mpicoll.model.cells import gather
from mpicoll.model.verdicts import ONE_LAUNCH, TOLD
from mpicoll.report import figures, page, papers, style, tables
from mpicoll.report.advice import first
from mpicoll.report.collect import _columns, collect, maps
from mpicoll.report.content import Mark, over_native
from mpicoll.report.names import short
from mpicoll.simulate.costs import INTRA, Costs, Piece

COSTS = Costs({INTRA: (Piece(None, 2e-6, 1e-9),)}, gamma=2e-10, call=1e-6, step=5e-7)
MEASURED = {"allreduce": ["ring", "recursive_doubling", "native"], "barrier": ["dissemination"]}
SIZES = (8, 1024, 65536, 1 << 20)
EVIL = "</script><script>alert(1)</script><b onload='x'>&amp;"


def sweep(**options):
    """Runs on a machine of known costs; a barrier has no bytes."""
    runs = launched(COSTS, MEASURED, **{"ranks": (1, 2, 4), "sizes": SIZES, **options})
    for run in runs:
        run.points = [
            replace(p, size=0, count=0, type="none", redop="none")
            if p.collective == "barrier"
            else p
            for p in run.points
            if p.collective != "barrier" or p.size == SIZES[0]
        ]
    return runs


@pytest.fixture(scope="module")
def runs():
    return sweep()


@pytest.fixture(scope="module")
def content(runs):
    cells, left = gather(runs)
    found = build.build(runs, cells, left, replicates=5)
    return collect(runs, cells, found)


class Reader(html.parser.HTMLParser):
    """Collects what a page refers to, its tags, texts, and plots."""

    def __init__(self, text):
        super().__init__()
        self.references, self.texts, self.plots, self.tags, self.targets = [], [], [], [], []
        self._inside = None
        self.feed(text)
        self.said = " ".join(self.texts)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append(tag)
        self.references += [v for k, v in attributes.items() if k in ("src", "href", "srcset")]
        self.targets += ["#" + v for k, v in attributes.items() if k == "id"]
        assert not [name for name in attributes if name.startswith("on")]
        if tag in ("script", "style"):
            self._inside = attributes.get("type", tag)

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self._inside = None

    def handle_data(self, data):
        if self._inside == "application/json":
            self.plots.append(json.loads(data))
        elif self._inside is None:
            self.texts.append(data)


@pytest.fixture(scope="module")
def read(content):
    return Reader(page.render(content))


# --- the content ----------------------------------------------------------------------------------


def test_sections_are_collectives_on_ranks(content):
    found = [(s.collective, s.ranks, len(s.points)) for s in content.sections]
    per_launch = len(SIZES) * 3
    assert found == [
        ("allreduce", 1, 3 * per_launch),
        ("allreduce", 2, 3 * per_launch),
        ("allreduce", 4, 3 * per_launch),
        ("barrier", 0, 9),
    ]
    assert content.sections[2].factor == pytest.approx(1.5)
    assert content.sections[0].factor == content.sections[3].factor == 0


def test_the_fastest_comes_first_and_the_library_last(content):
    names = [series.choice for series in content.sections[2].series]
    assert names[0] == "recursive_doubling" and names[-1] == "native"


def test_a_mark_is_a_median_of_launches():
    alone = Mark(2, 8, {"a": tuple(range(1, 21))})
    summary = summarise(range(1, 21))
    assert alone.seconds == 10.5 and alone.interval == (summary.low, summary.high)
    three = Mark(2, 8, {"a": (1.0, 2.0, 9.0), "b": (3.0,), "c": (7.0, 7.0)})
    assert three.seconds == 3 and three.interval == (2, 7)
    assert alone.raw(5) == [1, 6, 11, 15, 20]
    assert alone.raw(20) == list(range(1, 21))


def test_lines_are_the_model_and_residuals_small(content):
    section = content.sections[2]
    ring = next(series for series in section.series if series.choice == "ring")
    assert {size for size, _ in ring.line} > set(SIZES)
    for size, predicted in ring.line:
        assert predicted == pytest.approx(seconds(COSTS, "allreduce", "ring", 4, size), rel=0.1)
    assert [size for size, _ in ring.residuals] == list(SIZES)
    assert max(abs(error) for _, error in ring.residuals) < 0.1
    native = section.series[-1]
    assert native.line == native.residuals == ()
    assert all(series.line == () for series in content.sections[0].series)  # one rank sends nothing


def test_nothing_of_what_is_modelled_goes_below_the_bound(content):
    for section in content.sections:
        bound = dict(section.bound)
        lines = [point for series in section.series for point in series.line if point[0] in bound]
        assert section.ranks == 1 or lines
        assert all(time > 0.8 * bound[at] for at, time in lines)


def test_a_map_has_the_fastest_and_what_the_default_costs(runs):
    slow = {("allreduce", "recursive_doubling"): 5.0, ("allreduce", "native"): 20.0}
    cells, _ = gather(sweep(slower=slow, spread=0.0, between=0.0))
    (found,) = maps(cells)
    assert found.sizes == tuple((size, size) for size in SIZES) and list(found.rows) == [2, 4]
    squares = [square for row in found.rows.values() for square in row]
    assert {square.best for square in squares} == {"ring"} and all(s.tested for s in squares)
    for square in squares:
        assert (square.regret > 0.01) == (square.default != "ring")
    assert not maps(gather(sweep(launches=1))[0])[0].rows[2][0].tested


def test_sizes_that_were_rounded_share_a_column():
    """8 bytes of whole float32 blocks are 8, 12 or 16."""
    rows = [[8, 256, 262144], [12, 252, 262140], [16, 256, 262144]]
    assert _columns(rows) == ((8, 16), (252, 256), (262140, 262144))
    assert [tables.column(*sizes) for sizes in _columns(rows)] == ["8 – 16", "252 – 256", "256K"]
    assert _columns([[8, 16], [16, 32]]) == ((8, 8), (16, 16), (32, 32))
    assert _columns([[8], [8, 64]]) == ((8, 8), (64, 64))


def test_crossovers_are_of_their_section(content):
    (found,) = {c.place.ranks for s in content.sections for c in s.crossovers if s.ranks == 4} or {
        4
    }
    assert found == 4
    assert all(c.place.ranks == s.ranks for s in content.sections for c in s.crossovers)


def test_choices_are_short_where_parameters_are_the_default():
    assert short("allreduce", "hierarchical segments=1 window=8") == short(
        "allreduce", "hierarchical"
    )
    assert short("allreduce", "chain segments=4").startswith("chain segments=4")
    assert short("allreduce", "of_tomorrow x=1") == "of_tomorrow x=1"


def test_lines_differ():
    found = style.lines([*map(str, range(42)), "native"])
    assert len({(line.color, line.symbol) for line in found.values()}) == 43


def test_the_recommendation_is_the_fastest_with_its_gain():
    """The library's own takes four times as long as the ring, whose launches hardly differ."""
    slow = {("allreduce", "recursive_doubling"): 9.0, ("allreduce", "native"): 9.0}
    content = collect(sweep(slower=slow, between=0.001), gather(sweep(slower=slow))[0])
    two, four, *barriers = content.advice
    assert (two.choice, two.ranks, two.sizes) == ("ring", 2, (SIZES[0], SIZES[-1]))
    assert [one.choice for one in barriers] == ["dissemination"] * 2
    assert first(content.advice) == [four, barriers[-1]] and four.sure == TOLD
    at = {ratio.at: ratio for ratio in over_native(content.sections[2], _ring(content.sections[2]))}
    exact = {
        size: 9
        * seconds(COSTS, "allreduce", "native", 4, size)
        / seconds(COSTS, "allreduce", "ring", 4, size)
        for size in SIZES
    }
    for size, ratio in at.items():
        assert ratio.low <= ratio.middle <= ratio.high
        assert ratio.middle == pytest.approx(exact[size], rel=0.03)
    mean = np.exp(np.mean([np.log(value) for value in exact.values()])) - 1
    assert four.gain.low < mean < four.gain.high
    said = Reader(page.render(content)).said
    assert f"for allreduce of 8 to 1M B on 4 ranks: {100 * four.gain.share:.0f} % faster" in said
    assert f"identical launches differ by {100 * content.noise:.1f} %" in said


def _ring(section):
    return next(series for series in section.series if series.choice == "ring")


def test_one_launch_recommends_with_a_warning():
    runs = sweep(launches=1, ranks=(2,))
    content = collect(runs, gather(runs)[0])
    assert content.noise is None
    assert content.advice[0].sure == ONE_LAUNCH
    ratios = over_native(content.sections[0], _ring(content.sections[0]))
    assert all(ratio.low < ratio.middle < ratio.high for ratio in ratios)
    said = Reader(page.render(content)).said
    assert "Noise floor: unknown with one launch" in said


def test_repetitions_far_off_do_not_widen_an_axis(runs):
    """Nor does an error of the model that is far from all others."""
    slow = [
        replace(run, points=[replace(p, times=(*p.times[:-1], 1e3)) for p in run.points])
        for run in runs
    ]
    for made in (runs, slow):
        (section, *_) = [s for s in collect(made).sections if s.ranks == 4]
        drawn = figures.times(section, style.lines(["ring", "recursive_doubling", "native"]))
        low, high = drawn["layout"]["yaxis"]["range"]
        medians = [mark.seconds * 1e6 for series in section.series for mark in series.marks]
        assert 10**low < min(medians) and max(medians) < 10**high < 3 * max(medians)
    assert figures.usual([0.01] * 20 + [9.0]) == pytest.approx(0.02)
    assert figures.usual([0.01, -0.05]) == 0.05


def test_the_model_is_thin_and_medians_are_joined(content):
    drawn = figures.times(content.sections[2], style.lines(content.choices("allreduce")))
    modelled = [t for t in drawn["data"] if t["mode"] == "lines" and t["meta"] >= 0]
    measured = [t for t in drawn["data"] if "error_y" in t]
    assert len(modelled) == 2 and len(measured) == 3
    assert all(t["line"]["width"] == 1 and t["line"]["dash"] != "solid" for t in modelled)
    assert all(t["mode"] == "lines+markers" and "dash" not in t["line"] for t in measured)


def test_the_environment_says_once_what_launches_have_in_common():
    facts = {"mpi": "Some MPI 1.0", "environment": {"A": "1", "B": "same"}}
    runs = [
        Run("one", facts, []),
        Run("two", {**facts, "environment": {"A": "2", "B": "same"}, "commit": "c"}, []),
    ]
    reader = Reader(tables.environment(runs))
    assert reader.said.count("Some MPI 1.0") == 1
    assert reader.said.index("What differs") < reader.said.index("environment: A")
    assert reader.said.index("environment: B") < reader.said.index("What differs")
    assert "What differs" not in Reader(tables.environment(runs[:1])).said


def test_tints_are_light():
    assert tables.tint("#000000") == "#b8b8b8" and tables.tint("#ffffff") == "#ffffff"


# --- the page -------------------------------------------------------------------------------------


def test_the_page_needs_nothing_else(content, read):
    text = page.render(content)
    assert read.references and set(read.references) <= set(read.targets)
    assert len(re.findall(r"<script\b[^>]*>", text)) == read.tags.count("script")
    assert not {"link", "img", "iframe", "object", "base"} & set(read.tags)
    assert "default-src 'none'" in text and "@import" not in text.split("</style>")[0]
    assert 'name="viewport"' in text and "@media print" in text


def test_the_page_has_its_parts(read):
    for words in (
        "allreduce, 4 ranks, float32, sum",
        "barrier, by number of ranks",
        "The fastest algorithm",
        "The model",
        "Noise floor",
        "Environment",
        "Some MPI 1.0",
        "lower bound",
    ):
        assert words in read.said
    # Time and × native for each P, then bandwidth and residuals, which one rank has not; a barrier
    # has no bytes, and the library's own was not measured.
    assert len(read.plots) == 2 + 4 + 4 + 2


def test_plots_are_such_that_plotly_takes_them(read):
    go = pytest.importorskip("plotly.graph_objects")
    for figure in read.plots:
        go.Figure(figure)
    time, _, bandwidth = read.plots[2:5]
    assert time["layout"]["xaxis"]["type"] == time["layout"]["yaxis"]["type"] == "log"
    for figure in (time, bandwidth):
        bars = [trace for trace in figure["data"] if "error_y" in trace]
        assert {trace["name"] for trace in bars} == {"ring", "recursive_doubling", "native"}
        assert all(trace["error_y"]["array"] for trace in bars)
        dots = [trace for trace in figure["data"] if trace.get("marker", {}).get("size") == 3]
        assert len(dots) == 3 and len(dots[0]["x"]) == len(SIZES) * figures.RAW


def test_names_of_files_are_texts(runs):
    evil = [
        Run(
            EVIL,
            {
                "hosts": {EVIL: {"ranks": [0, 1], "cores": [0]}},
                "mpi": EVIL,
                "settings": {EVIL: EVIL},
            },
            [
                replace(p, run=EVIL, algorithm=EVIL, type=EVIL, redop=EVIL, oversubscribed=True)
                for p in runs[0].points
                if p.collective == "allreduce"
            ],
        )
    ]
    reader = Reader(page.render(collect(evil)))
    assert EVIL in reader.said and "b" not in reader.tags
    assert reader.tags.count("script") == 2 + len(reader.plots)
    (figure, *_) = reader.plots
    assert "<" not in figure["data"][0]["name"]  # plotly reads tags, too


def test_a_collective_of_tomorrow_is_refused(runs):
    strange = replace(runs[0].points[0], collective="of_tomorrow")
    with pytest.raises(ValueError, match="of_tomorrow"):
        collect([Run("r", {}, [strange])])


def test_a_page_tells_no_folder_and_nobodys_name(runs):
    facts = {
        "arguments": ["bench", "-J", "/home/someone/x.jsonl"],
        "mpi": "Open MPI v5.0.1, package: Open MPI someone@there Distribution, ident: 5.0.1",
        "environment": {"A": "/home/someone/lib"},
    }
    text = page.render(collect([Run("r", facts, runs[0].points)]))
    assert "someone" not in text and "x.jsonl" in text and "Open MPI v5.0.1" in text


def test_a_failed_page_leaves_the_old_one(tmp_path, monkeypatch, content):
    path = tmp_path / "a.html"
    path.write_text("old")
    monkeypatch.setattr(page, "render", lambda content: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        page.write(path, content)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.html"]


@pytest.mark.parametrize(
    ("least", "most", "ticks"),
    [
        (3.0, 30.0, [2, 5, 10, 20, 50]),
        (1e-5, 1.0, [1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1]),
        (7.0, 7.0, [6, 7, 8]),
        (0.94, 1.3, [0.9, 1, 1.1, 1.2, 1.3, 1.5]),
    ],
)
def test_ticks(least, most, ticks):
    assert figures.decimal_ticks(least, most) == pytest.approx(ticks)


# --- figures for papers, and the command ----------------------------------------------------------


def test_figures_for_papers(content, tmp_path):
    few = replace(content, sections=content.sections[2:])
    files = papers.write(tmp_path, few, "svg")
    assert len({*files}) == len(files) == 4 + 2 + 1
    for path in files:
        assert ET.parse(path).getroot().tag.endswith("svg")
    drawn = (tmp_path / "allreduce-4-float32-time.svg").read_text()
    assert "recursive_doubling" in drawn
    assert ">100<" in drawn and not any("mathdefault" in path.read_text() for path in files)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "runs.jsonl"
    with Writer(path) as writer:
        for run in sweep(ranks=(2,), sizes=SIZES[:2], launches=2):
            writer.run(run.name, run.facts)
            for point in run.points:
                writer.point(point)
    return path


def test_the_command(file, tmp_path, capsys):
    out = tmp_path / "out.html"
    assert cli.main(["report", str(file), "-o", str(out), "--no-model"]) == 0
    assert capsys.readouterr().out == f"written to {out}\n"
    reader = Reader(out.read_text())
    assert "The model" not in reader.said and "The fastest algorithm" in reader.said


def test_a_model_of_a_file(file, tmp_path, capsys):
    model, out = tmp_path / "model.json", tmp_path / "out.html"
    assert cli.main(["fit", str(file), "-o", str(model)]) == 0
    words = ["report", str(file), "-o", str(out), "-m", str(model)]
    assert cli.main([*words, "--figures", str(tmp_path / "figures"), "--format", "png"]) == 0
    assert "The model" in Reader(out.read_text()).said
    assert len(list((tmp_path / "figures").glob("*.png"))) == 4 + 2 + 1
    assert cli.main([*words, "--no-model"]) == 2
    assert cli.main([*words, "--format", "gif"]) == 2
    assert "unknown --format 'gif'" in capsys.readouterr().err


def test_wrong_results_are_not_drawn(tmp_path, capsys):
    """An algorithm that is fast since it is wrong would win."""
    path, out = tmp_path / "runs.jsonl", tmp_path / "out.html"
    (run,) = sweep(ranks=(2,), sizes=SIZES[:2], launches=1)
    with Writer(path) as writer:
        writer.run(run.name, run.facts)
        for point in run.points:
            bad = point.collective == "allreduce" or point.algorithm == "native"
            writer.point(replace(point, wrong=int(bad), problem="rank 0" if bad else None))
    words = ["report", str(path), "-o", str(out), "--no-model"]
    assert cli.main([*words, "--figures", str(tmp_path / "figures")]) == 1
    names = [path.name for path in (tmp_path / "figures").iterdir()]
    assert names and not any("allreduce" in name for name in names)
    reader = Reader(out.read_text(encoding="utf-8"))
    assert "wrong elements; see the column #wrong" in reader.said
    assert "points with wrong results are only in the table" in reader.said


def test_only_oversubscribed_points_have_no_model(tmp_path, capsys):
    path, out = tmp_path / "runs.jsonl", tmp_path / "out.html"
    (run,) = sweep(ranks=(2,), sizes=SIZES[:2], launches=1)
    with Writer(path) as writer:
        writer.run(run.name, run.facts)
        for point in run.points:
            writer.point(replace(point, oversubscribed=True))
    assert cli.main(["report", str(path), "-o", str(out)]) == 0
    assert "no model: no point can be used" in capsys.readouterr().err
    reader = Reader(out.read_text())
    assert len(reader.plots) == 3  # times, and × native of the all-reduce
    assert "no recommendation and no model" in reader.said
    assert "waited for one another" in reader.said
