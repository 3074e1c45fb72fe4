"""Configurations and models of tests that compare to the last digits: in float64 by default."""

from dataclasses import dataclass
from functools import partial

from mpicoll import train
from mpicoll.train import models


@dataclass(frozen=True, kw_only=True)
class Config(train.Config):
    dtype: str = "float64"


class MLP(models.MLP):
    def __init__(self, sizes, dtype="float64", dropout=0.0):
        super().__init__(sizes, dtype, dropout)


convnet = partial(models.convnet, dtype="float64")
