"""What a training run can be told: the fields of `Config`, and so the options of ``mpicoll train``.

A field's help is what ``mpicoll train --help`` says; the documentation adds what stands below the
field. Importing this loads no NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass

from mpicoll.base.options import option


@dataclass(frozen=True, kw_only=True)
class Options:
    """The fields of a configuration, unchecked."""

    dataset: str = option(
        "mnist5k",
        "digits, mnist5k, fashion-mnist, text, an .npz file or a folder of .npy or idx files.",
        metavar="[DATASET]",
        argument=True,
    )
    data: str | None = option(
        None, "Folder of fashion-mnist; with text, a file to learn from.", metavar="PATH"
    )
    """None: the folder of the Debian package for `fashion-mnist`; Python's standard library for
    `text`."""
    context: int = option(128, "Bytes in a sample of text.")
    model: str = option(
        "softmax",
        "softmax, mlp, conv, resnet or transformer (a decoder).",
    )
    hidden: tuple[int, ...] = option(
        (64,), "Sizes of the hidden layers of mlp and conv: 128,64.", metavar="LIST"
    )
    """For `mlp`, and for `conv` after its convolutions."""
    channels: tuple[int, ...] = option(
        (16, 32), "Channels of conv's convolutions or resnet's stages: 16,32.", metavar="LIST"
    )
    """Output channels, first to last."""
    layers: int = option(2, "Blocks of a transformer: attention and two dense layers.")
    width: int = option(128, "Size of a transformer's token vectors.")
    heads: int = option(4, "Attention heads of each block of a transformer.")
    blocks: int = option(1, "Residual blocks in each stage of a resnet.")
    norm: str = option("global", "Batch norm of resnet: global, or local (each rank's part).")
    """`global`: the result of one process, by sums over the ranks in each layer. `local`: no
    messages; the result depends on the number of ranks. Strategies without common steps need
    `local`. With `invariant` each virtual shard is normalised by itself in both cases."""
    augment: str | None = option(None, "Augmentation of images: shift:N, flip or shift:N,flip.")
    """`shift:N` moves each image by up to N pixels, `flip` mirrors half of them; each epoch draws
    anew (`mpicoll.train.data.augment`)."""
    data_servers: int = option(0, "Number of ranks that only read and augment data.")
    """The last ranks; they prepare samples ahead of time."""
    dropout: float = option(0.0, "Probability that a hidden value is set to zero.")
    epochs: int = option(15, "Passes over the training set.")
    steps: int | None = option(None, "Stop after N steps.")
    pause_after: int | None = option(None, "Pause after N epochs; --resume continues.")
    """Learning rates are those of a run of `epochs`, so that another run can resume from the
    checkpoint. The test set is not measured."""
    target_loss: float | None = option(
        None, "Stop after an epoch with at most this validation loss."
    )
    """The test set is used if there is no validation set."""
    target_accuracy: float | None = option(
        None, "Stop after an epoch with at least this validation accuracy."
    )
    """The test set is used if there is no validation set."""
    evaluate_train: bool = option(
        False, "Also evaluate the training set after each epoch.", "--evaluate-train"
    )
    """It can take almost as long as the epoch."""
    batch: int = option(64, "Samples in a batch, over all ranks.")
    """If there are fewer samples, all of them."""
    batch_per_rank: int | None = option(
        None, "Samples in a batch of each rank, instead of --batch."
    )
    accumulate: int = option(1, "Batches whose gradients are summed in a step.")
    """Gradients are added on each rank first, then over the ranks."""
    optimizer: str = option("momentum", "sgd, momentum, nesterov, adam or adamw.")
    lr: float = option(0.05, "Learning rate.")
    """The highest, if it changes."""
    momentum: float = option(0.9, "Momentum of momentum and nesterov.")
    """Share of the last update kept in the next."""
    weight_decay: float = option(0.0, "Weight decay; decoupled in adamw.")
    """This factor times the weight is added to each gradient."""
    decay_on: str = option("all", "Parameters that decay: all, or matrices.")
    """`matrices`: parameters with two axes or more."""
    groups: tuple[str, ...] = option(
        (), "Parameter groups: *.bias:decay=0,emb*:lr=0.1.", metavar="LIST"
    )
    """Each is `PATTERN:lr=FACTOR:decay=DECAY`: a factor of the learning rate, a weight decay, or
    both. A parameter is in the first group whose pattern matches its name
    (`mpicoll.train.groups`)."""
    lr_scaling: str = option("none", "Scale --lr with the number of ranks: none, linear or sqrt.")
    """Multiplied by the number (`linear`), by its square root (`sqrt`) or not at all (`none`)."""
    schedule: str = option(
        "constant", "Course of the learning rate: constant, linear, cosine, steps."
    )
    """`steps`: a tenth after half of the steps, a hundredth after three quarters."""
    warmup: int = option(0, "Steps in which the learning rate grows to --lr.")
    """The first steps of the run; it grows linearly."""
    clip: float | None = option(None, "Largest norm of the gradient.")
    """The norm is that of all parameters together; a larger gradient is scaled down."""
    skip_limit: int = option(10, "Consecutive steps that may be skipped as not finite.")
    loss_scale: float | None = option(None, "Initial loss scale for float16 and fp16.")
    """A power of two. It is halved when a step overflows, and doubled after 2000 steps that did
    not. None: 65536 if `dtype` is float16, 1024 if `wire` is fp16, otherwise no scale. With
    parameter servers each worker has its own until the end of an epoch."""
    seed: int = option(0, "Seed of initial weights and the order of samples.")
    """Also for dropout and augmentation."""
    device: str = option("cpu", "Where to compute: cpu, or gpu (with CuPy).")
    """`gpu`: data, parameters and computation are CuPy arrays on the current GPU of the process."""
    dtype: str = option("float32", "Type of data: float64, float32, float16 or bfloat16.")
    """The type of data and computation. With float16 and bfloat16, parameters and sums of gradients
    are in float32. bfloat16 needs the package ml_dtypes."""
    strategy: str = option(
        "allreduce", "allreduce, zero1, fsdp, parameter_server, local_sgd or gossip."
    )
    """`zero1`: each rank updates a part of the parameters and keeps only the optimizer's arrays of
    that part (Rajbhandari et al. 2020). `fsdp`: each rank also keeps only a part of parameters and
    gradients; layers are gathered when they are used. `local_sgd` and `gossip`: see
    `mpicoll.train.strategies.apart`."""
    gather: str = option("all", "With fsdp: all (a part of each layer), broadcast (whole layers).")
    """What a rank owns. `all`: an even part of each layer, gathered by an all-gather. `broadcast`:
    every P-th layer of P ranks, which it broadcasts."""
    keep_gathered: bool = option(
        False, "With fsdp: gather layers once a step, and keep them.", "--keep-gathered"
    )
    """It sends as many bytes as an all-reduce, and needs the memory of all parameters (ZeRO-2).
    With `accumulate` it also sums gradients once a step, and needs the memory of all of them."""
    mesh: str | None = option(
        None, "Ranks along each axis, as data=2,pipe=2,tensor=1.", metavar="AXES"
    )
    """`data`: replicas of the model, each with its share of the batch; if left out, as many as the
    ranks allow. `pipe`: stages that share the layers. `tensor`: neighbouring ranks that share each
    layer. None: all ranks are replicas."""
    microbatches: int | None = option(
        None, "Parts of a replica's share of a batch; default: 4 a stage."
    )
    """None: four for each stage, one if there is one stage."""
    pipeline_schedule: str = option("1f1b", "Order of a step's passes, such as gpipe or zb_h1.")
    """One of `mpicoll.train.step.names()`; `schedule` is that of the learning rate."""
    ahead: int | None = option(None, "With 1f1b: forward passes ahead, for each stage.")
    chunks: int | None = option(None, "With interleaved: chunks of layers on each rank.")
    cut: str = option("even", "Cut of the layers: even, auto, or the first of each chunk: 0,3,7.")
    """`auto`: the cut whose slowest chunk takes least, by the time of each layer, measured at the
    start. A run that is resumed keeps the cut of its checkpoint if it has as many chunks."""
    sequence: bool = option(False, "With tensor: divide norms, too, by tokens.", "--sequence")
    """For a transformer. Ranks that share layers keep a part of the values between them (V.
    Korthikanti et al. 2022)."""
    recompute: bool = option(
        False, "Run forward passes again before backward passes.", "--recompute"
    )
    """In between, ranks keep only the inputs of their chunks."""
    timeline: str | None = option(
        None, "Write what all ranks do in the first steps.", metavar="FILE"
    )
    """For the trace viewers of Chrome and Perfetto."""
    servers: str = option("colocated", "A number, colocated or decentralized.")
    """A number: that many ranks, the last ones, only serve. `colocated`: every rank is a worker and
    serves a part. `decentralized`: every rank is a worker and holds everything; workers push to
    each other."""
    consistency: str = option("bsp", "Consistency: bsp, ssp:S, adaptive:MIN,MAX[,M] or async.")
    """See `mpicoll.train.servers.consistency`."""
    push_rate: str = option("share", "Learning rate of a push (not bsp): share, staleness, full.")
    """If each push makes an update, its learning rate is multiplied by its `share` of the samples
    of a step, divided by one plus its `staleness`, or used in `full`."""
    workers: int | None = option(None, "Refuse to start unless this many ranks compute.")
    """Compared with the ranks that `servers` leaves. None: any number."""
    replicas: int = option(0, "Number of backup servers of each server.")
    """That many may die (Open MPI 5, `mpirun --with-ft ulfm`). `servers` must be a number."""
    send_every: int | None = option(None, "Servers push parameters every N updates.")
    """1: as soon as there are new ones. None: workers ask for parameters."""
    apply_at_once: bool = option(
        False,
        "When to use what --send-every sends: between layers or steps.",
        "--apply-at-once/--apply-between",
    )
    average_every: int = option(8, "Steps between averages of local_sgd.")
    """Parameters and the optimizer's arrays are averaged."""
    graph: str = option("exponential", "Neighbours in gossip: ring or exponential.")
    algorithm: str | None = option(
        None, "All-reduce algorithm of the gradients; auto: the tuned choice, the default."
    )
    """In a program, None means auto. With a named algorithm, arrays on GPUs go through the host."""
    bucket: int | str | None = option(
        None,
        "Size of a gradient bucket; model: chosen by MPICOLL_MODEL.",
        metavar="BYTES",
        words=str | None,
    )
    """None: an eighth of all gradients, at least 64 KiB, at most 25 MB. `model` means the same if
    ``MPICOLL_MODEL`` names no fitted model."""
    wire: str = option("full", "Type of gradients in messages: full, fp16, bf16, int8, topk:SHARE.")
    invariant: int | None = option(
        None, "Same bits on any number of ranks up to V (16).", metavar="[=V]"
    )
    """Every batch is cut into V virtual shards, whose gradients are added along one tree
    (`mpicoll.train.exchange.tree`). None: the bits depend on the number of ranks."""
    deterministic: bool = option(False, "Same bits for every bucket size.", "--deterministic")
    """All-reduce algorithms in which the order of a sum depends on the position in the bucket, such
    as ring, are refused."""
    survive: bool = option(
        False, "Continue when ranks die (Open MPI 5, mpirun --with-ft ulfm).", "--survive"
    )
    """The others continue from the last completed step, with the same global batch."""
    spares: int = option(0, "Spare ranks, with --survive: they replace ranks that die.")
    """A spare rank takes the place of the dead one."""
    balance: str = option("none", "Balance of samples over ranks: none (equal) or speed.")
    check_every: int = option(100, "Steps between comparisons of the ranks' parameters; 0: never.")
    checkpoint: str | None = option(None, "Write checkpoints to this folder.", metavar="FOLDER")
    checkpoint_every: int | None = option(None, "Steps between checkpoints; an epoch if not given.")
    keep: int = option(2, "Number of checkpoints to keep beside the best.")
    """The best has the lowest loss on the validation set; if there is none, on the test set."""
    resume: str | None = option(
        None, "Resume from a checkpoint; auto: from the last, if any.", metavar="PATH"
    )
    """A folder means its last checkpoint; `auto`: the last in `checkpoint`, if any."""
    metrics: str | None = option(
        None, "Write metrics (JSON lines) to this folder.", metavar="FOLDER"
    )
    tensorboard: str | None = option(
        None, "Write TensorBoard event files to this folder.", metavar="FOLDER"
    )
    hang_after: float | None = option(
        600.0, "Write all stacks if no step ends in this time.", metavar="SECONDS"
    )
    """None: never."""
