"""What a training run is told: a typed, checked configuration."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from mpicoll import algorithms
from mpicoll.base.arrays import DEVICES
from mpicoll.train.data import DATASETS, augment, is_path
from mpicoll.train.exchange import wire
from mpicoll.train.models.networks import MODELS
from mpicoll.train.optimizers import OPTIMIZERS
from mpicoll.train.schedules import SCALINGS, SCHEDULES
from mpicoll.train.servers import consistency
from mpicoll.train.servers.shard import PUSH_RATES

DTYPES = ("float64", "float32", "float16")
STRATEGIES = ("allreduce", "zero1", "parameter_server", "local_sgd", "gossip")
GRAPHS = ("ring", "exponential")
_OPTIONAL_COUNTS = (
    "steps",
    "batch_per_rank",
    "bucket",
    "checkpoint_every",
    "workers",
    "send_every",
    "invariant",
)
BALANCES = ("none", "speed")
#: The field, and the word that leaves it to the fitted model.
FROM_MODEL = ("bucket", "model")


@dataclass(frozen=True, kw_only=True)
class Config:
    """A training run. Equal on all ranks; checked when made.

    Attributes:
        dataset: `digits`, `mnist5k`, `fashion-mnist`, or the path of an .npz file or of a folder of
            .npy files (`mpicoll.train.data.from_arrays`).
        data: Folder of the files of `fashion-mnist`, None for that of the Debian package.
        model: `softmax` (softmax regression), `mlp` or `conv` (a small convolutional net).
        hidden: Sizes of the hidden layers of an `mlp`, or of `conv` after its convolutions.
        channels: Output channels of the convolutions of `conv`, first to last.
        augment: `shift:N` (move each image by up to N pixels), `flip` (mirror half of them) or
            both, `shift:N,flip`, anew in each epoch; None for nothing
            (`mpicoll.train.data.augment`).
        data_servers: So many ranks, the last, read and augment samples for the others, ahead of
            need, and do nothing else.
        dropout: Share of hidden values set to zero while training.
        epochs: Passes over the training set.
        steps: Stop after so many steps, None for no such limit.
        target_loss: Stop after an epoch with a mean training loss of at most this.
        target_accuracy: Stop after an epoch with at least this share of the test set correct.
        batch: Samples in one batch, of all ranks together. More than there are means all.
        batch_per_rank: Samples in one batch of one rank, in place of `batch`.
        accumulate: Batches in one step: their gradients are added up before the ranks' are.
        optimizer: `sgd`, `momentum`, `nesterov`, `adam` or `adamw`.
        lr: Learning rate; the highest, where it changes.
        momentum: Share of the last update kept in the next, for `momentum` and `nesterov`.
        weight_decay: Added to each gradient as so many times the weight; decoupled in `adamw`.
        lr_scaling: Multiply the learning rate by the number of ranks (`linear`), by its square root
            (`sqrt`) or by nothing (`none`).
        schedule: `constant`, `linear`, `cosine` or `steps` (a tenth after half of the steps, a
            hundredth after three quarters).
        warmup: First steps, over which the learning rate grows evenly.
        clip: Largest norm of the gradient of all parameters together; a larger one is scaled down.
        skip_limit: How many steps in a row may be skipped because a gradient is not finite.
        loss_scale: First factor of the loss in front of a narrow type, a power of two; halved when
            a step overflows, doubled after 2000 that did not. None: 65536 if `dtype` is float16,
            1024 if `wire` is fp16, otherwise none.
        seed: Decides initial parameters, the order of samples, and dropout.
        device: `cpu`, or `gpu`: data, parameters and computation are on this process' current GPU,
            in CuPy's arrays.
        dtype: `float64`, `float32` or `float16`, of data and computation. Parameters and sums of
            gradients are kept in float32 where it is float16.
        strategy: `allreduce`, or `zero1`: each rank updates a part and keeps the optimizer's state
            for that part alone (Rajbhandari et al. 2020), `parameter_server`, `local_sgd` or
            `gossip` (`mpicoll.train.strategies.apart`).
        servers: With `parameter_server`: so many ranks, the last, serve and do nothing else;
            `colocated`: every rank works and serves a part; `decentralized`: every rank works and
            holds all, workers push to each other.
        consistency: With `parameter_server`: `bsp`, `ssp:S`, `adaptive:MIN,MAX[,M]` or `async`
            (`mpicoll.train.servers.consistency`).
        push_rate: Learning rate of one push where each makes an update: times its `share` of the
            samples of a step, divided by one plus its `staleness`, or in `full`.
        workers: With `parameter_server`: ranks that compute, to be checked against what `servers`
            leaves of the ranks that were started; None for whatever it leaves.
        send_every: With `parameter_server`: servers send their parameters unasked, after so many
            updates (1: whenever there are new ones); None: workers ask for them.
        replicas: With so many `servers`: how many others hold each server's part too, so that as
            many may die (under Open MPI 5, `mpirun --with-ft ulfm`).
        apply_at_once: With `send_every`: a worker takes over what arrives while it computes
            gradients, instead of before its next step.
        average_every: With `local_sgd`: steps from one average of the parameters to the next.
        graph: With `gossip`: `ring` or `exponential`.
        algorithm: All-reduce algorithm for the gradients, None for the communicator's choice;
            `default` is ring, and on GPUs None, since by an algorithm arrays go through the host.
        bucket: Bytes of gradients summed together; `model`: by the fitted model that
            ``MPICOLL_MODEL`` names, if there is one; None for `exchange.default_bucket`.
        wire: Format in which gradients travel: `full`, `fp16`, `bf16`, `int8`, `topk:SHARE`.
        checkpoint: Folder to keep checkpoints in, None for none.
        checkpoint_every: Steps between two; None: one at the end of each epoch.
        keep: How many are kept, beside the one with the best test accuracy.
        resume: A checkpoint, or a folder of them, to go on from; `auto`: the last in `checkpoint`,
            if there is one.
        metrics: Folder to write metrics to (`mpicoll.train.driver.metrics`), None for none.
        invariant: Virtual shards that every batch is cut into, so that the bits of the result are
            the same on any number of ranks up to that (`mpicoll.train.exchange.tree`); None: sums
            depend on the number of ranks.
        deterministic: Refuse what makes bits depend on the bucket size: all-reduce algorithms in
            which the order of a sum depends on where in a bucket it is, such as ring.
        balance: `none`: all ranks take as many samples; `speed`: as many as they are fast.
        tensorboard: Folder to write event files of TensorBoard to, None for none.
        hang_after: Seconds without the end of a step after which all ranks write their stacks;
            None for never.
        check_every: Compare the ranks' parameters after every so many steps, 0 for never.

    Raises:
        ValueError: A value is out of its range; the message names value, limit and remedy.
    """

    dataset: str = "mnist5k"
    data: str | None = None
    model: str = "softmax"
    hidden: tuple[int, ...] = (64,)
    channels: tuple[int, ...] = (16, 32)
    augment: str | None = None
    data_servers: int = 0
    dropout: float = 0.0
    epochs: int = 15
    steps: int | None = None
    target_loss: float | None = None
    target_accuracy: float | None = None
    batch: int = 64
    batch_per_rank: int | None = None
    accumulate: int = 1
    optimizer: str = "momentum"
    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 0.0
    lr_scaling: str = "none"
    schedule: str = "constant"
    warmup: int = 0
    clip: float | None = None
    skip_limit: int = 10
    loss_scale: float | None = None
    seed: int = 0
    device: str = "cpu"
    dtype: str = "float64"
    strategy: str = "allreduce"
    servers: str = "colocated"
    consistency: str = "bsp"
    push_rate: str = "share"
    workers: int | None = None
    send_every: int | None = None
    apply_at_once: bool = False
    replicas: int = 0
    average_every: int = 8
    graph: str = "exponential"
    algorithm: str | None = "default"
    bucket: int | str | None = None
    wire: str = "full"
    invariant: int | None = None
    deterministic: bool = False
    balance: str = "none"
    check_every: int = 100
    checkpoint: str | None = None
    checkpoint_every: int | None = None
    keep: int = 2
    resume: str | None = None
    metrics: str | None = None
    tensorboard: str | None = None
    hang_after: float | None = 600.0

    def __post_init__(self) -> None:
        if self.algorithm == "default":
            object.__setattr__(self, "algorithm", "ring" if self.device == "cpu" else None)
        self._check_names()
        for name, least in (
            ("epochs", 1),
            ("batch", 1),
            ("accumulate", 1),
            ("warmup", 0),
            ("skip_limit", 0),
            ("seed", 0),
            ("check_every", 0),
            ("keep", 1),
            ("average_every", 1),
            ("replicas", 0),
            ("data_servers", 0),
        ):
            _at_least(name, getattr(self, name), least)
        for name in _OPTIONAL_COUNTS:
            if getattr(self, name) is not None and (name, getattr(self, name)) != FROM_MODEL:
                _at_least(name, getattr(self, name), 1)
        for size in self.hidden:
            _at_least("hidden layer size", size, 1)
        for size in self.channels:
            _at_least("number of channels", size, 1)
        if self.model == "mlp" and not self.hidden:
            raise ValueError(
                "an mlp needs at least one hidden layer: give hidden, or model softmax"
            )
        if self.resume == "auto" and self.checkpoint is None:
            raise ValueError(
                "resume auto goes on from the last checkpoint of the run's own: give checkpoint, "
                "or the path of another as resume"
            )
        if self.model == "conv" and not self.channels:
            raise ValueError("a conv needs at least one convolution: give channels, or model mlp")
        self._check_numbers()
        self._check_bits()

    def _check_names(self) -> None:
        if not is_path(self.dataset):
            known = (*DATASETS, "the path of an .npz file or of a folder")
            _one_of("dataset", self.dataset, known)
        _one_of("model", self.model, MODELS)
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("device", self.device, DEVICES)
        _one_of("optimizer", self.optimizer, OPTIMIZERS)
        _one_of("schedule", self.schedule, tuple(SCHEDULES))
        _one_of("lr_scaling", self.lr_scaling, tuple(SCALINGS))
        _one_of("strategy", self.strategy, STRATEGIES)
        wire.codec(self.wire)
        if self.augment is not None:
            augment.parse(self.augment)
        if self.algorithm is not None:
            names = (*algorithms.names("allreduce"), "native")
            _one_of("all-reduce algorithm", self.algorithm, names)
        _one_of("graph", self.graph, GRAPHS)
        _one_of("balance", self.balance, BALANCES)
        if self.strategy == "parameter_server":
            self._check_servers()
        if self.strategy in ("local_sgd", "gossip"):
            self._check_apart()
        if self.strategy != "allreduce" and self.wire != "full":
            raise ValueError(
                f"strategy {self.strategy} sends gradients as they are, not as {self.wire}: "
                "give wire full, or strategy allreduce"
            )
        if self.device == "gpu":
            self._check_gpu()

    def _check_gpu(self) -> None:
        if self.wire != "full":
            raise ValueError(
                f"wire {self.wire} is encoded by the host: give wire full, or device cpu"
            )
        for name, why in (
            ("augment", "all samples are on the GPU"),
            ("data_servers", "all samples are on the GPU"),
            ("invariant", "its promise is of processors' arithmetic"),
        ):
            if getattr(self, name):
                raise ValueError(
                    f"device gpu does not take {name}, because {why}: leave it out, or give device "
                    "cpu"
                )

    def _check_bits(self) -> None:
        """What equal bits, and shares that follow speed, go together with."""
        for mode, wanted in (
            (
                "invariant",
                {
                    "strategy": ("allreduce",),
                    "wire": ("full",),
                    "balance": ("none",),
                    "batch_per_rank": (None,),
                    "lr_scaling": ("none",),
                },
            ),
            (
                "deterministic",
                {
                    "strategy": ("allreduce",),
                    "wire": ("full", "fp16", "bf16"),
                    "balance": ("none",),
                },
            ),
            ("balance", {"strategy": ("allreduce", "zero1"), "data_servers": (0,)}),
        ):
            if getattr(self, mode) in (None, False, "none"):
                continue
            for name, known in wanted.items():
                if getattr(self, name) not in known:
                    wanted_words = " or ".join("nothing" if k is None else str(k) for k in known)
                    raise ValueError(
                        f"{mode} does not go together with {name} {getattr(self, name)}: give "
                        f"{name} {wanted_words}, or leave {mode} out"
                    )
        if self.deterministic and self.algorithm in (None, "native"):
            raise ValueError(
                "deterministic needs an all-reduce algorithm whose order of sums is known: give "
                "one, such as recursive_doubling"
            )

    def _check_apart(self) -> None:
        for name, why in (
            ("clip", "no rank knows the gradient of the whole batch"),
            ("checkpoint_every", "ranks have the same parameters at the end of an epoch only"),
        ):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"strategy {self.strategy} does not take {name}, because {why}: leave it out"
                )

    def _check_servers(self) -> None:
        consistency.parse(self.consistency)
        _one_of("push_rate", self.push_rate, PUSH_RATES)
        if not re.fullmatch(r"colocated|decentralized|[1-9]\d{0,5}", self.servers):
            raise ValueError(
                f"servers is {self.servers!r}: give a number of ranks of at least 1, colocated or "
                "decentralized"
            )
        if self.replicas:
            self._check_replicas()
        if self.apply_at_once and self.send_every is None:
            raise ValueError(
                "apply_at_once is of parameters that servers send unasked: give send_every, such "
                "as 1, or leave it out"
            )
        for name, wanted, why in (
            ("clip", None, "no server knows the norm of the whole gradient"),
            ("checkpoint_every", None, "shards are at one clock at the end of an epoch only"),
            ("loss_scale", None, "servers do not scale the loss"),
        ):
            if getattr(self, name) != wanted:
                raise ValueError(
                    f"strategy parameter_server does not take {name}, because {why}: leave it out"
                )
        if self.dtype == "float16":
            raise ValueError("strategy parameter_server trains in float64 or float32: give one")

    def _check_replicas(self) -> None:
        if not self.servers.isdigit():
            raise ValueError(
                f"replicas is {self.replicas} with servers {self.servers}, where a rank that dies "
                "takes a worker with it: give a number of servers, or leave replicas out"
            )
        if self.data_servers:
            raise ValueError(
                "data servers do not outlive another rank: leave data_servers out, or replicas"
            )
        if int(self.servers) <= self.replicas:
            raise ValueError(
                f"{self.replicas} replica(s) of each part need at least {self.replicas + 1} "
                f"servers, not {self.servers}: give more servers, or fewer replicas"
            )
        if self.send_every is not None:
            raise ValueError(
                "a replica answers what a worker asks: leave send_every out, or replicas"
            )

    def _check_numbers(self) -> None:
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr is {self.lr}: give a finite learning rate above 0, such as 0.1")
        if not 0 <= self.momentum < 1:
            raise ValueError(
                f"momentum is {self.momentum}: give 0 (plain SGD) or a number between 0 and 1"
            )
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay is {self.weight_decay}: give 0 or a number above")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}: give a number from 0 to below 1")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(f"clip is {self.clip}: give a finite norm above 0, such as 1")
        if self.hang_after is not None and not self.hang_after > 0:
            raise ValueError(
                f"hang_after is {self.hang_after}: give seconds above 0, such as 600, or nothing"
            )
        if self.loss_scale is not None and not (
            self.loss_scale > 0 and math.frexp(self.loss_scale)[0] == 0.5
        ):
            raise ValueError(f"loss_scale is {self.loss_scale}: give a power of two, such as 1024")

    def worker_count(self, ranks: int) -> int:
        """How many of so many ranks compute gradients.

        Raises:
            ValueError: There are not more ranks than serve, or other than `workers` says.
        """
        serving = {"data server": self.data_servers}
        if self.strategy == "parameter_server" and self.servers.isdigit():
            serving["server"] = int(self.servers)
        count = sum(serving.values())
        words = " and ".join(f"{n} {what}(s)" for what, n in reversed(serving.items()) if n)
        if count >= ranks:
            raise ValueError(
                f"{words} on {ranks} rank(s) leave no worker: start at least {count + 1} ranks, or "
                "give fewer servers"
            )
        if self.workers not in (None, ranks - count):
            raise ValueError(
                f"{self.workers} worker(s) and {count} rank(s) that only serve are "
                f"{(self.workers or 0) + count}, but {ranks} were started: start so many, or leave "
                "workers out"
            )
        return ranks - count

    def global_batch(self, ranks: int) -> int:
        """Samples in one batch of so many ranks together."""
        return self.batch if self.batch_per_rank is None else self.batch_per_rank * ranks

    def alone(self, ranks: int) -> Config:
        """What one process must be told to do the same as so many workers together."""
        return replace(
            self,
            batch=self.global_batch(ranks),
            batch_per_rank=None,
            lr=self.lr * SCALINGS[self.lr_scaling](ranks),
            lr_scaling="none",
            strategy="allreduce",
            workers=None,
            balance="none",
            data_servers=0,
        )

    @property
    def first_scale(self) -> float | None:
        """Factor of the loss in the first step, None where the loss is not scaled."""
        if self.loss_scale is not None:
            return self.loss_scale
        if self.dtype == "float16":
            return 65536.0
        return 1024.0 if self.wire == "fp16" else None


def _one_of(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"unknown {what} {value!r}: known are {', '.join(known)}")


def _at_least(what: str, value: int, limit: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < limit:
        raise ValueError(f"{what} is {value!r}: give a whole number of at least {limit}")
