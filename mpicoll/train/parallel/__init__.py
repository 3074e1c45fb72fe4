"""Parallel training along axes of a mesh of ranks: replicas that share the data, stages that share
the layers, and ranks that share each layer or its parameters."""

from mpicoll.train.parallel.fully_sharded import FullySharded
from mpicoll.train.parallel.layer_times import measured
from mpicoll.train.parallel.mesh import Axis, Mesh
from mpicoll.train.parallel.parts import Parts
from mpicoll.train.parallel.pipeline import NotFinite, Pipeline
from mpicoll.train.parallel.shards import shard
from mpicoll.train.parallel.stages import balanced
from mpicoll.train.parallel.timeline import Timeline
from mpicoll.train.parallel.units import Drawn

__all__ = [
    "Axis",
    "Drawn",
    "FullySharded",
    "Mesh",
    "NotFinite",
    "Parts",
    "Pipeline",
    "Timeline",
    "balanced",
    "measured",
    "shard",
]
