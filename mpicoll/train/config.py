"""What a training run is told: a typed, checked configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from mpicoll import algorithms
from mpicoll.base.arrays import DEVICES
from mpicoll.train import groups
from mpicoll.train.data import DATASETS, augment, is_path
from mpicoll.train.exchange import wire
from mpicoll.train.models.networks import MODELS
from mpicoll.train.optimizers import OPTIMIZERS
from mpicoll.train.options import Options
from mpicoll.train.parallel.mesh import count_replicas, parse
from mpicoll.train.registry import STRATEGIES
from mpicoll.train.schedules import SCALINGS, SCHEDULES
from mpicoll.train.step.catalogue import Schedule, schedule

#: Name of each type to compute in, and the bytes of one value.
DTYPES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
GRAPHS = ("ring", "exponential")
_OPTIONAL_COUNTS = (
    "steps",
    "pause_after",
    "batch_per_rank",
    "bucket",
    "checkpoint_every",
    "workers",
    "send_every",
    "invariant",
    "microbatches",
    "chunks",
)
BALANCES = ("none", "speed")
NORMS = ("global", "local")
#: Options that are of a mesh with such axes.
OF_AXES = {
    "microbatches": ("pipe", "tensor"),
    "pipeline_schedule": ("pipe",),
    "ahead": ("pipe",),
    "chunks": ("pipe",),
    "cut": ("pipe",),
    "sequence": ("tensor",),
    "recompute": ("pipe", "tensor"),
    "timeline": ("pipe", "tensor"),
}
_SHARED: dict[str, tuple[object, ...]] = {
    "wire": ("full",),
    "balance": ("none",),
    "batch_per_rank": (None,),
    "lr_scaling": ("none",),
    "data_servers": (0,),
    "deterministic": (False,),
    "device": ("cpu",),
    "bucket": (None,),
}
#: What options, and axes of the mesh, go together with; `mpicoll.train.registry` says with which
#: strategies.
TOGETHER: dict[str, dict[str, tuple[object, ...]]] = {
    "invariant": {
        "wire": ("full",),
        "balance": ("none",),
        "batch_per_rank": (None,),
        "lr_scaling": ("none",),
    },
    "deterministic": {"wire": ("full", "fp16", "bf16"), "balance": ("none",)},
    "balance": {"data_servers": (0,)},
    "survive": {
        "wire": ("full", "fp16", "bf16"),
        "data_servers": (0,),
        "device": ("cpu",),
        "workers": (None,),
    },
    "spares": {"survive": (True,)},
    "pipe": {**_SHARED, "keep_gathered": (False,)},  # it is so without
    "tensor": {**_SHARED, "invariant": (None,)},
}
#: The field, and the word that leaves it to the fitted model.
FROM_MODEL = ("bucket", "model")


@dataclass(frozen=True, kw_only=True)
class Config(Options):
    """A training run, with the fields of `Options`. Equal on all ranks; checked when made.

    Raises:
        ValueError: A value is out of its range; the message names value, limit and remedy.
    """

    def __post_init__(self) -> None:
        self._check_names()
        for name, least in (
            ("epochs", 1),
            ("batch", 1),
            ("blocks", 1),
            ("accumulate", 1),
            ("warmup", 0),
            ("skip_limit", 0),
            ("seed", 0),
            ("check_every", 0),
            ("keep", 1),
            ("average_every", 1),
            ("replicas", 0),
            ("data_servers", 0),
            ("spares", 0),
            ("context", 1),
            ("layers", 1),
            ("width", 1),
            ("heads", 1),
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
                "resume auto takes the last checkpoint in the run's own folder: give checkpoint, "
                "or the path of another as resume"
            )
        if self.model in ("conv", "resnet") and not self.channels:
            raise ValueError(
                f"a {self.model} needs at least one convolution: give channels, or model mlp"
            )
        self._check_numbers()
        self._check_mesh()
        self._check_bits()

    def _check_names(self) -> None:
        if not is_path(self.dataset):
            known = (*DATASETS, "the path of an .npz file or of a folder")
            one_of("dataset", self.dataset, known)
        one_of("model", self.model, MODELS)
        one_of("dtype", self.dtype, tuple(DTYPES))
        one_of("device", self.device, DEVICES)
        one_of("optimizer", self.optimizer, OPTIMIZERS)
        one_of("schedule", self.schedule, tuple(SCHEDULES))
        one_of("decay_on", self.decay_on, groups.DECAYING)
        for group in self.groups:
            groups.parse(group)
        one_of("lr_scaling", self.lr_scaling, tuple(SCALINGS))
        one_of("strategy", self.strategy, tuple(STRATEGIES))
        wire.codec(self.wire)
        if self.augment is not None:
            augment.parse(self.augment)
        if self.algorithm is not None:
            names = (*algorithms.names("allreduce"), "native")
            one_of("all-reduce algorithm", self.algorithm, names)
        one_of("graph", self.graph, GRAPHS)
        one_of("balance", self.balance, BALANCES)
        one_of("norm", self.norm, NORMS)
        strategy = STRATEGIES[self.strategy]
        strategy.check(self)
        if self.wire != "full" and "wire" not in strategy.takes:
            raise ValueError(
                f"strategy {self.strategy} sends gradients as they are, not as {self.wire}: "
                f"give wire full, or strategy {' or '.join(STRATEGIES.taking('wire'))}"
            )
        if self.device == "gpu":
            self._check_gpu()

    def _check_gpu(self) -> None:
        if self.wire != "full":
            raise ValueError(
                f"wire {self.wire} is encoded by the host: give wire full, or device cpu"
            )
        if self.dtype == "bfloat16":
            raise ValueError(
                "dtype bfloat16 does not exist in CuPy: give float16 or float32, or device cpu"
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
        """What equal bits, shares that follow speed, and axes of the mesh go together with."""
        axes = self.axes
        for mode, wanted in TOGETHER.items():
            if mode in axes:
                if axes[mode] == 1:
                    continue
            elif getattr(self, mode) in (None, False, "none"):
                continue
            strategies = STRATEGIES.taking("survive" if mode == "spares" else mode)
            for name, known in {"strategy": strategies, **wanted}.items():
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

    def _check_mesh(self) -> None:
        """Axes, and what is of them alone."""
        axes = self.axes
        for name, of in OF_AXES.items():
            value = getattr(self, name)
            if value != getattr(Options, name) and all(axes[axis] == 1 for axis in of):
                raise ValueError(
                    f"{name} is {value}, and all ranks are replicas of the whole model: give mesh, "
                    f"such as {of[0]}=2, or leave {name} out"
                )
        if not self.has_parts:
            return
        order = self.step_schedule.order
        if not order.trains:
            raise ValueError(
                f"pipeline_schedule {order.name} has only forward passes: give one that trains, "
                "such as 1f1b"
            )
        for name, wanted in (("clip", None), ("accumulate", 1), ("invariant", None)):
            if order.updates and getattr(self, name) != wanted:
                raise ValueError(
                    f"pipeline_schedule {order.name} does not take {name}, because it updates each "
                    "stage after each microbatch: leave it out, or give 1f1b"
                )
        if order.updates and self.first_scale is not None:
            raise ValueError(
                f"pipeline_schedule {order.name} does not scale the loss: give dtype float32 or "
                "bfloat16 without loss_scale, or 1f1b"
            )

    @property
    def axes(self) -> dict[str, int]:
        """Ranks along each axis of the mesh; 0 replicas are as many as there are ranks for."""
        return {"data": 0, "pipe": 1, "tensor": 1} | ({} if self.mesh is None else parse(self.mesh))

    @property
    def has_parts(self) -> bool:
        """Whether a rank has a part of the model alone, as the mesh says."""
        return self.axes["pipe"] * self.axes["tensor"] > 1

    @property
    def step_schedule(self) -> Schedule:
        """Of a step of a replica.

        The batches of a step follow each other through the stages.
        """
        pipe = self.axes["pipe"]
        count = self.microbatches or (4 * pipe if pipe > 1 else 1)
        given = {"ahead": self.ahead, "chunks": self.chunks}
        options = {name: number for name, number in given.items() if number is not None}
        return schedule(
            self.pipeline_schedule,
            pipe,
            count * self.accumulate,
            recompute=self.recompute,
            **options,
        )

    def _check_numbers(self) -> None:
        clip, seconds, scale = self.clip, self.hang_after, self.loss_scale
        is_scale = scale is None or (scale > 0 and math.frexp(scale)[0] == 0.5)
        for name, is_right, remedy in (
            ("lr", 0 < self.lr < math.inf, "a finite learning rate above 0, such as 0.1"),
            ("momentum", 0 <= self.momentum < 1, "0 (plain SGD) or a number between 0 and 1"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "0 or a number above"),
            ("dropout", 0 <= self.dropout < 1, "a number from 0 to below 1"),
            ("clip", clip is None or 0 < clip < math.inf, "a finite norm above 0, such as 1"),
            (
                "hang_after",
                seconds is None or seconds > 0,
                "seconds above 0, such as 600, or nothing",
            ),
            ("loss_scale", is_scale, "a power of two, such as 1024"),
        ):
            if not is_right:
                raise ValueError(f"{name} is {getattr(self, name)}: give {remedy}")

    def worker_count(self, ranks: int) -> int:
        """How many of so many ranks compute gradients.

        Raises:
            ValueError: There are not more ranks than serve, or other than `workers` says.
        """
        servers = STRATEGIES[self.strategy].servers(self)
        serving = {"data server": self.data_servers, "server": servers}
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
        if self.mesh is not None:
            axes = self.axes
            count_replicas(ranks - count, axes["data"] or None, axes["pipe"], axes["tensor"])
        return ranks - count

    def global_batch(self, ranks: int) -> int:
        """Samples in one batch of so many ranks together."""
        return self.batch if self.batch_per_rank is None else self.batch_per_rank * ranks

    def for_ranks(self, ranks: int) -> Config:
        """What any number of workers must be told to do the same as so many."""
        return replace(
            self,
            batch=self.global_batch(ranks),
            batch_per_rank=None,
            lr=self.lr * SCALINGS[self.lr_scaling](ranks),
            lr_scaling="none",
        )

    def alone(self, ranks: int) -> Config:
        """What one process must be told to do the same as so many workers together."""
        return replace(
            self.for_ranks(ranks),
            strategy="allreduce",
            workers=None,
            balance="none",
            data_servers=0,
            survive=False,
            spares=0,
            mesh=None,
            **{name: getattr(Options, name) for name in OF_AXES},
        )

    @property
    def is_narrow(self) -> bool:
        """Whether parameters are kept in float32 beside a copy in a narrower type to compute in."""
        return DTYPES[self.dtype] < 4

    @property
    def first_scale(self) -> float | None:
        """Factor of the loss in the first step, None where the loss is not scaled."""
        if self.loss_scale is not None:
            return self.loss_scale
        if self.dtype == "float16":
            return 65536.0
        return 1024.0 if self.wire == "fp16" else None


def one_of(what: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse a value that is not known, naming those that are."""
    if value not in known:
        raise ValueError(f"unknown {what} {value!r}: known are {', '.join(known)}")


def _at_least(what: str, value: int, limit: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < limit:
        raise ValueError(f"{what} is {value!r}: give a whole number of at least {limit}")
