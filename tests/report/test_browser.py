"""Pages in a real browser: drawn without an error, without a network, and no wider than it."""

import json

import browser
import pytest
from synthetic import launched

from mpicoll.model import build
from mpicoll.model.cells import gather
from mpicoll.report import page
from mpicoll.report.collect import collect
from mpicoll.simulate.costs import INTRA, CostModel, Costs, Piece

pytest.importorskip("plotly")

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
def shown(tmp_path_factory):
    """Shows a page at some widths: what the probe finds there."""
    program = browser.find()
    if program is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    home = tmp_path_factory.mktemp("browser")
    chromium = browser.Browser(program, home)

    def show(text, width):
        path = home / "page.html"
        path.write_text(text, encoding="utf-8")
        chromium.show(path, width)
        found = json.loads(chromium.run(PROBE))
        assert chromium.complaints == []
        return found

    yield show
    chromium.close()


def require_whole(shown, text, names):
    """A page has all of its plots on a screen and on a phone, and nothing is wider than these."""
    for width in (1400, 500):
        found = shown(text, width)
        assert found["width"] <= width
        assert [plot["name"] for plot in found["plots"]] == names
        for plot in found["plots"]:
            assert plot["lines"] and plot["within"], plot
            assert min(plot["size"]) > 200, plot


def test_a_sweep(shown):
    """With many sizes, a model, and recommendations."""
    sizes = tuple(8 << i for i in range(0, 22, 2))
    runs = launched(COSTS, NAMES, ranks=(4,), sizes=sizes, launches=3, repetitions=9)
    cells, left = gather(runs)
    found = build.judged(CostModel(COSTS), cells, left)
    text = page.render(collect(runs, cells, found))
    what = ("time", "native", "bandwidth", "residuals")
    require_whole(shown, text, [f"allreduce-4-float32-{name}" for name in what])
