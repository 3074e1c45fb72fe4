"""A strategy of one's own, in one file: sums of gradients and nothing else."""

import time

import numpy as np

from mpicoll.train import optimizers
from mpicoll.train.ranks.workers import raise_together
from mpicoll.train.records import Step
from mpicoll.train.registry import STRATEGIES
from mpicoll.train.strategies.protocol import Strategy
from mpicoll.train.strategies.training import Training, gradients_of


class Plain(Strategy):
    def check(self, config):
        if config.clip is not None:
            raise ValueError("strategy plain does not take clip: leave it out")

    def memory(self, config, rank, ranks, holding):
        nbytes = holding.weights.vector.nbytes
        return {"gradients": nbytes, "optimizer": nbytes}

    def describe(self, config):
        return "plain sums"

    def make(self, setup):
        return PlainTraining(setup)


class PlainTraining(Training):
    def __init__(self, setup):
        rank, size = setup.workers.rank, setup.workers.size
        source = self._source = gradients_of(setup, range(rank, rank + 1), size)
        super().__init__(setup, source.buffers, source.sampler)
        self._state = optimizers.empty_state(self._optimizer, self.weights.vector)

    def steps(self, epoch, done):
        self.position, gradients = done, self._source.flat.vector
        for samples in self._source.batches(epoch, done):
            began, failure = time.perf_counter(), self.failure
            totals = np.zeros(2)
            try:
                totals[0] = self._source.compute(self.views, samples, epoch, lambda name: None)
            except Exception as error:
                failure = failure or error
            raise_together(self._workers, f"step {self.position}", failure)
            seconds, totals[1] = time.perf_counter() - began, self.asked
            self._workers.sum(gradients)
            self._workers.sum(totals)
            self.number, self.position, self.updates = (
                self.number + 1,
                self.position + 1,
                self.number + 1,
            )
            lr = self.rate(self.number)
            self._optimizer.update(self.weights.vector, gradients, self._state, lr, self.updates)
            self._take_over()
            self.stop = bool(totals[1])
            yield Step(
                number=self.number,
                epoch=epoch,
                position=self.position,
                of=self.sampler.steps,
                loss=float(totals[0]),
                lr=lr,
                skipped=False,
                compute=seconds,
                exposed=0.0,
                hidden=0.0,
                waiting=0.0,
                slowest=None,
                loading=0.0,
            )
            if self.stop or self.number == self._config.steps:
                break

    def counters(self):
        return {"number": self.number}

    def _kept(self):
        if self._workers.rank == 0:
            yield "parameter", 0, self.weights.vector
            for slot, values in self._state.items():
                yield f"state/{slot}", 0, values

    def restore(self, saved, counters):
        for slot, start, values in self._restored(saved):
            self._state[slot][start : start + values.size] = values
        self.number = self.updates = counters["number"]

    def close(self, failed=False):
        pass


#: The one line.
STRATEGIES["plain"] = Plain()
