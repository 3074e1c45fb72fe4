"""Pages in a real browser: drawn without an error, without a network, and no wider than it."""

import json

import browser
import pytest
from clouds import clouds
from profile_lines import line
from synthetic import launched

from mpicoll.model import build
from mpicoll.model.cells import gather
from mpicoll.profile.merged import Part, Profile
from mpicoll.report import overlay, page, profile, search, tiers, training
from mpicoll.report.collect import collect
from mpicoll.simulate.costs import INTRA, CostModel, Costs, Piece
from mpicoll.train import Config, history, run
from mpicoll.train.exits.serve import Outcome

pytest.importorskip("plotly")
# A browser is many processes, which share the cores with whatever else is tested.
pytestmark = pytest.mark.timeout(180)

COSTS = Costs({INTRA: (Piece(None, 2e-6, 1e-9),)}, gamma=2e-10, call=1e-6, step=5e-7)
NAMES = {"allreduce": ["ring", "recursive_doubling", "swing", "native"]}

#: Of a page: how wide it wants to be, and of each plot whether it is drawn and within its place.
PROBE = """JSON.stringify({
  width: document.documentElement.scrollWidth,
  plots: [...document.querySelectorAll(".plot")].map((plot) => {
    const place = plot.getBoundingClientRect();
    const drawn = plot.querySelector(".main-svg");
    const own = drawn ? drawn.getBoundingClientRect() : {width: 0, height: 0, right: 0};
    return {
      name: plot.dataset.name,
      lines: plot.querySelectorAll(".trace").length,
      size: [own.width, own.height],
      within: own.right <= place.right + 1 && place.right <= innerWidth + 1,
    };
  }),
})"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    program = browser.find()
    if program is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    made = browser.Browser(program, tmp_path_factory.mktemp("browser"))
    yield made
    made.close()


@pytest.fixture
def shown(chromium, tmp_path):
    """Shows a page at some width: what the probe finds there, and what the browser complains of."""

    def show(text, width):
        path = tmp_path / "page.html"
        path.write_text(text, encoding="utf-8")
        chromium.show(path, width)
        return json.loads(chromium.run(PROBE)), list(chromium.complaints)

    return show


def require_whole(shown, text, names):
    """A page has all of its plots on a screen and on a phone, and nothing is wider than these."""
    for width in (1400, 500):
        found, complaints = shown(text, width)
        assert complaints == [] and found["width"] <= width
        assert [plot["name"] for plot in found["plots"]] == names
        for plot in found["plots"]:
            assert plot["lines"] and plot["within"], plot
            assert min(plot["size"]) > 200, plot


def test_faults_are_seen(shown):
    """A request, an error of a script, and what is wider than the screen."""
    faults = '<img src="http://127.0.0.1:9/a.png"><script>nothing()</script>'
    faults += '<div style="width: 2000px">wide</div>'
    found, complaints = shown(page.document("faulty", faults), 1400)
    assert found["width"] > 1400
    assert any("Content Security Policy" in text for text in complaints), complaints
    assert any("Uncaught" in text for text in complaints), complaints


def test_a_sweep(shown):
    """With many sizes, a model, and recommendations."""
    sizes = tuple(8 << i for i in range(0, 22, 2))
    runs = launched(COSTS, NAMES, ranks=(4,), sizes=sizes, launches=3, repetitions=9)
    cells, left = gather(runs)
    found = build.judged(CostModel(COSTS), cells, left)
    text = page.render(collect(runs, cells, found))
    what = ("time", "native", "bandwidth", "residuals")
    require_whole(shown, text, [f"allreduce-4-float32-{name}" for name in what])


def test_training_runs(shown, tmp_path):
    """One run, and two over each other."""
    found = []
    for name, lr in (("slow", 0.01), ("fast", 0.1)):
        config = Config(batch=16, epochs=2, lr=lr, metrics=str(tmp_path / name))
        run(config, dataset=clouds())
        found.append(history.read(tmp_path / name))
    require_whole(shown, training.render(found[0]), ["loss", "accuracy", "time"])
    each = ("loss", "test-loss", "test-accuracy")
    names = [f"{one}-by-{what}" for one in each for what in ("step", "seconds")]
    require_whole(shown, overlay.render(found), [*names, "time"])


def test_a_profile(shown):
    """Calls of four ranks, from places with long names."""
    lines = [line(file=f"some/where/{'a' * 40}{n}.py") for n in range(15)]
    facts = {"command": ["python", "app.py"]}
    about = (dict.fromkeys(range(4), 4.0), frozenset(range(4)), lines)
    messages = dict.fromkeys(range(4), Part(1, 8, 0.5, None))
    found = Profile("name", facts, 4, *about, messages, [], 60, 1e-6)
    require_whole(shown, profile.render(found, [], []), ["ranks", "places"])


def test_a_search(shown):
    """Of three trials, the best of which goes on."""
    space = {"space": {"lr": {"log": [0.01, 1.0]}}, "run": {"model": "mlp"}}
    records = [{"event": "search", "seconds": 0.0, "space": space, "options": {"method": "asha"}}]
    for trial, epochs, loss in ((0, 1, 0.9), (1, 1, 0.5), (2, 1, 0.7), (1, 2, 0.4)):
        about = {"trial": trial, "epochs": epochs, "seconds": 1.0 * len(records)}
        values = {"loss": loss}
        records += [
            {**about, "event": "asked", "values": {"lr": 0.1 * (trial + 1)}},
            {**about, "event": "epoch", "number": epochs, "validation": values},
            {
                **{**about, "event": "told", "score": -loss, "measure": "loss"},
                **{"validation": values, "failed": ""},
            },
        ]
    names = ["values", "epochs", "best-by-time", "best-by-epochs"]
    text = search.render(records)
    assert "Best: trial 1 (lr 0.2) after 2 epochs, validation loss 0.4000" in text
    require_whole(shown, text, names)


def test_early_exits(shown):
    """Three thresholds of a device and a cloud."""
    outcomes = [
        Outcome(
            threshold=threshold,
            samples=100,
            answered=1.0,
            accuracy=0.9 - threshold / 10,
            leaving={"device": threshold, "cloud": 1 - threshold},
            sent={"scores": 40.0, "features": 100 * (1 - threshold), "heads": 8.0},
            formula=None,
            raw=784,
            seconds={"median": 0.01, "mean": 0.02, "p95": 0.03},
            late=0,
            tiers=[],
            scores=[],
        )
        for threshold in (0.0, 0.5, 1.0)
    ]
    names = ["accuracy", "leaving", "bytes", "time", "accuracy-by-bytes"]
    require_whole(shown, tiers.render(outcomes, {}), names)
