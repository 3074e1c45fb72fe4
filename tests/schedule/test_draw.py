"""Labels of arrows in a picture can be read: nothing strikes them through or covers them."""

from itertools import combinations

import pytest

from mpicoll import algorithms, draw


@pytest.fixture
def figures(monkeypatch):
    """The figures that are written."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    written = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: written.append(figure))
    monkeypatch.setattr(draw, "replacing", _nowhere)
    return written


class _nowhere:
    def __init__(self, path):
        self.suffix = ".svg"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.mark.parametrize(
    ("collective", "name", "size"),
    [("allreduce", "ring", 4), ("allreduce", "recursive_doubling", 8), ("allgather", "bruck", 6)],
)
def test_no_label_is_struck_through_or_covered(figures, collective, name, size):
    draw.svg("picture.svg", algorithms.find(collective, name), size)
    (figure,) = figures
    figure.draw_without_rendering()
    texts = figure.axes[0].texts
    arrows = [text for text in texts if not text.get_text()]
    labels = [text for text in texts if text.get_text()]
    assert len(arrows) == len(labels) > size
    assert max(arrow.get_zorder() for arrow in arrows) < min(x.get_zorder() for x in labels)
    assert all(x.get_bbox_patch().get_facecolor() == (1, 1, 1, 1) for x in labels)
    boxes = [label.get_window_extent() for label in labels]
    assert not any(box.overlaps(other) for box, other in combinations(boxes, 2))
