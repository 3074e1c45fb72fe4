"""Runs the program of one rank of a mesh on a batch of all ranks."""

from __future__ import annotations

from collections.abc import Sequence

from mpicoll.train.models.networks import Sequential
from mpicoll.train.parallel import checks
from mpicoll.train.parallel.agreement import Given, Group
from mpicoll.train.parallel.executor import Executor
from mpicoll.train.parallel.program import Failure, Plan, Span
from mpicoll.train.parallel.replicas import Replicas
from mpicoll.train.parallel.stage import Stage
from mpicoll.train.parallel.sums import Sums
from mpicoll.train.parallel.weights import Update
from mpicoll.train.parallel.wires import Wires
from mpicoll.train.ranks.workers import TrainingError
from mpicoll.train.step.catalogue import Schedule
from mpicoll.train.step.tasks import Task

#: What MPI may still read or write, of runs that ended early: other ranks may begin the same
#: collectives, or send, at any time.
_under_way: list[object] = []


class Runner:
    """What runs of this rank have in common.

    Args:
        group: The ranks.
        model: The model, whole.
        schedule: Of each replica.
        starts: Number of the first layer of each chunk.
        stage, replicas: This rank's.
        wires: The messages between stages; None where there is one.

    Attributes:
        is_last: Whether this rank has the last layers.
        versions: The most versions of its parameters that it kept in the last run.
        waited: Seconds of the last run, within its tasks, in which it has waited for replicas.
    """

    def __init__(
        self,
        group: Group,
        model: Sequential,
        schedule: Schedule,
        starts: Sequence[int],
        stage: Stage,
        replicas: Replicas,
        wires: Wires | None,
    ) -> None:
        self._group, self._model, self._schedule = group, model, schedule
        self._replicas = replicas
        self._starts, self._stage, self._wires = starts, stage, wires
        self._executor: Executor | None = None
        self._ended_by = ""  # what has ended a run early, in words
        self.is_last = schedule.chunks - 1 in stage.chunks
        self.versions, self.waited = 1, 0.0

    def planned(self, program: Sequence[Task], recomputes: bool) -> Plan:
        """What stays the same in all runs of a program of this rank's chunks."""
        model = self._model
        shapes = {edge: model.shapes[start] for edge, start in enumerate(self._starts) if edge}
        return Plan(
            program,
            self._stage.chunks,
            self._schedule.chunks - 1,
            model.loss,
            self._schedule.place,
            shapes,
            model.dtype,
            recomputes,
        )

    def run(
        self,
        plan: Plan,
        given: Given,
        sums: Sums | None = None,
        update: Update | None = None,
        spans: list[Span] | None = None,
    ) -> Executor:
        """Run a program; afterwards the parameters are the newest, and sums complete.  Collective.

        Args:
            plan: What to do.
            given: The batch.
            sums, update, spans: As of `Executor`.

        Raises:
            TrainingError: A run before has ended early, as by a time limit or Ctrl-C.
        """
        if self._ended_by:
            raise TrainingError(
                f"a step of this pipeline ended early, by {self._ended_by}; its messages may still "
                "come: make a new mesh and pipeline on all ranks"
            )
        stage = self._stage
        batches, failure = self._group.batches(given, alone=update is not None)
        if failure is None:
            try:
                checks.require_short(plan, batches)
                if sums is not None:
                    self._group.warn_of_empty(given)
                batches = self._group.filled(
                    batches, given, 0 in stage.chunks, self.is_last, plan.dtype
                )
            except Exception as error:
                failure = Failure.of("the samples", error)
        failure = self._group.agreed(failure)
        weights = self._replicas.versions(plan.program)
        executor = self._executor = Executor(
            plan, self._wires, weights, stage.buffer_names, sums, batches, update, spans, failure
        )
        try:
            executor.run()
        except BaseException as error:
            self._ended_by = f"{type(error).__name__}: {error}".removesuffix(": ")
            parts = weights, sums, self._wires
            _under_way.extend(part.under_way for part in parts if part is not None)
            raise
        self.versions = weights.most
        self.waited = weights.waited + (0.0 if sums is None else sums.waited)
        return executor

    @property
    def doing(self) -> str:
        """The task that this rank is in, or has ended last, in words; "" before the first."""
        task = None if self._executor is None else self._executor.doing
        return "" if task is None else str(task)
