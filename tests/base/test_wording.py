"""Numbers of things in words."""

import pytest

from mpicoll import algorithms, draw
from mpicoll.base.wording import plural


@pytest.mark.parametrize(
    ("number", "noun", "words"),
    [(0, "byte", "0 bytes"), (1, "rank", "1 rank"), (2, "rank", "2 ranks")],
)
def test_plural(number, noun, words):
    assert plural(number, noun) == words


def test_a_drawing_of_one_message():
    text = draw.text(algorithms.find("bcast", "linear"), 2)
    assert "1 step, 1 message, 1 block;" in text
