"""What the environment says."""

import re
import warnings
from pathlib import Path

import pytest

from mpicoll.runtime import settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "environment.rst"


def test_the_variables_are_those_that_are_documented():
    assert set(re.findall(r"``(MPICOLL_[A-Z_]+)``", PAGE.read_text())) == settings.VARIABLES


def test_a_misspelt_variable_is_warned_of():
    with pytest.warns(UserWarning, match="MPICOLL_ALREDUCE is no .*; is MPICOLL_ALLREDUCE meant"):
        settings._warn_of_misspelt({"MPICOLL_ALREDUCE": "ring", "HOME": "/"})


def test_other_variables_are_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings._warn_of_misspelt({"MPICOLL_ALLREDUCE": "ring", "MPICOLL_TEST_RANKS": "2"})
