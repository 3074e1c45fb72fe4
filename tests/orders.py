"""Orders of computation that tests go through."""

from __future__ import annotations

import pytest

#: Every order, with some values of each parameter.
ORDERS = [
    ("forward", {}),
    ("naive", {}),
    ("gpipe", {}),
    *(("1f1b", {"ahead": ahead}) for ahead in (0, 1)),
    *(("interleaved", {"chunks": chunks}) for chunks in (1, 2, 3)),
    ("zb_h1", {}),
    ("zb_h2", {}),
    ("zb_v", {}),
    *(("pipedream", {"vertical": vertical}) for vertical in (False, True)),
]


def _named(value):
    return value if isinstance(value, str) else ",".join(f"{k}={v:d}" for k, v in value.items())


def every_order(test):
    """Run a test for each of them."""
    return pytest.mark.parametrize(("name", "parameters"), ORDERS, ids=_named)(test)
