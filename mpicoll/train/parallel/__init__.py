"""Parallel training along axes of a mesh of ranks: replicas that share the data, and stages that
share the layers."""

from mpicoll.train.parallel.mesh import Axis, Mesh
from mpicoll.train.parallel.pipeline import NotFinite, Pipeline
from mpicoll.train.parallel.stages import balanced, measured
from mpicoll.train.parallel.timeline import Timeline

__all__ = ["Axis", "Mesh", "NotFinite", "Pipeline", "Timeline", "balanced", "measured"]
