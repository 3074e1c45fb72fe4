"""Data sets, and which samples each rank sees in each step."""

from mpicoll.train.data.catalogue import DATASETS, is_path, load, name_of
from mpicoll.train.data.datasets import PARTS, Dataset, Feed
from mpicoll.train.data.own import from_arrays
from mpicoll.train.data.rows import Inputs
from mpicoll.train.data.trigram import trigram_loss

__all__ = [
    "DATASETS",
    "PARTS",
    "Dataset",
    "Feed",
    "Inputs",
    "from_arrays",
    "is_path",
    "load",
    "name_of",
    "trigram_loss",
]
