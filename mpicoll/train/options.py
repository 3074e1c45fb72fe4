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
        None, "Where fashion-mnist is; of text, a file to learn from.", metavar="PATH"
    )
    """None: where the Debian package puts the files of `fashion-mnist`; Python's own library as
    `text`."""
    context: int = option(128, "Bytes in a sample of text.")
    model: str = option(
        "softmax",
        "softmax, mlp, conv, resnet or transformer (a decoder).",
    )
    hidden: tuple[int, ...] = option(
        (64,), "Sizes of the hidden layers of mlp and conv: 128,64.", metavar="LIST"
    )
    """Of an `mlp`, or of `conv` after its convolutions."""
    channels: tuple[int, ...] = option(
        (16, 32), "Channels of conv's convolutions or resnet's stages: 16,32.", metavar="LIST"
    )
    """Output channels, first to last."""
    layers: int = option(2, "Blocks of a transformer: attention and two dense layers.")
    width: int = option(128, "Size of a transformer's token vectors.")
    heads: int = option(4, "Attention heads of each block of a transformer.")
    blocks: int = option(1, "Residual blocks in each stage of a resnet.")
    norm: str = option("global", "Batch norm of resnet: global, or local (each rank's part).")
    """`global`: as one process does, for sums over the ranks in each layer. `local`: without them,
    and what is learnt depends on the number of ranks; strategies without common steps need it. With
    `invariant` each virtual shard is normalised by itself, with either."""
    augment: str | None = option(None, "Augmentation of images: shift:N, flip or shift:N,flip.")
    """`shift:N` moves each image by up to N pixels, `flip` mirrors half of them, anew in each epoch
    (`mpicoll.train.data.augment`)."""
    data_servers: int = option(0, "Number of ranks that only read and augment data.")
    """They do so ahead of need, and nothing else."""
    dropout: float = option(0.0, "Probability that a hidden value is set to zero.")
    epochs: int = option(15, "Passes over the training set.")
    steps: int | None = option(None, "Stop after so many steps.")
    pause_after: int | None = option(None, "Pause after so many epochs; --resume continues.")
    """The learning rate is that of a run of `epochs`, so that another run can go on from the
    checkpoint; the test set is left alone."""
    target_loss: float | None = option(
        None, "Stop after an epoch with at most this validation loss."
    )
    """Of the test set, where there is no validation set."""
    target_accuracy: float | None = option(
        None, "Stop after an epoch with at least this validation accuracy."
    )
    """The share of the validation set that is correct; of the test set, where there is no other."""
    evaluate_train: bool = option(
        False, "Also evaluate the training set after each epoch.", "--evaluate-train"
    )
    """It takes as long as a good part of the epoch."""
    batch: int = option(64, "Samples in a batch, over all ranks.")
    """More than there are means all."""
    batch_per_rank: int | None = option(
        None, "Samples in a batch of each rank, instead of --batch."
    )
    accumulate: int = option(1, "Batches whose gradients are summed in a step.")
    """Their gradients are added up before the ranks' are."""
    optimizer: str = option("momentum", "sgd, momentum, nesterov, adam or adamw.")
    lr: float = option(0.05, "Learning rate.")
    """The highest, where it changes."""
    momentum: float = option(0.9, "Momentum of momentum and nesterov.")
    """Share of the last update kept in the next."""
    weight_decay: float = option(0.0, "Weight decay; decoupled in adamw.")
    """Added to each gradient as so many times the weight."""
    decay_on: str = option("all", "Parameters that decay: all, or matrices.")
    """`matrices`: parameters of two axes and more."""
    groups: tuple[str, ...] = option(
        (), "Parameter groups: *.bias:decay=0,emb*:lr=0.1.", metavar="LIST"
    )
    """Each `PATTERN:lr=FACTOR:decay=DECAY`: a factor of the learning rate, a weight decay, or both;
    a parameter is of the first whose pattern its name has (`mpicoll.train.groups`)."""
    lr_scaling: str = option("none", "Scale --lr with the number of ranks: none, linear or sqrt.")
    """Multiplied by that number (`linear`), by its square root (`sqrt`) or by nothing."""
    schedule: str = option(
        "constant", "Course of the learning rate: constant, linear, cosine, steps."
    )
    """`steps`: a tenth after half of the steps, a hundredth after three quarters."""
    warmup: int = option(0, "Steps in which the learning rate grows to --lr.")
    """The first ones; it grows evenly."""
    clip: float | None = option(None, "Largest norm of the gradient.")
    """Of the gradient of all parameters together."""
    skip_limit: int = option(10, "Consecutive steps that may be skipped as not finite.")
    loss_scale: float | None = option(None, "Initial loss scale for float16 and fp16.")
    """A power of two; halved when a step overflows, doubled after 2000 that did not. None: 65536 if
    `dtype` is float16, 1024 if `wire` is fp16, otherwise none. Workers of
    servers have each its own until the end of an epoch."""
    seed: int = option(0, "Seed of initial weights and the order of samples.")
    """Also of dropout and augmentation."""
    device: str = option("cpu", "Where to compute: cpu, or gpu (with CuPy).")
    """`gpu`: data, parameters and computation are in CuPy's arrays on the process' current GPU."""
    dtype: str = option("float32", "Type of data: float64, float32, float16 or bfloat16.")
    """Of data and computation. Parameters and sums of gradients are kept in float32 where it is
    float16 or bfloat16 (which needs the package ml_dtypes)."""
    strategy: str = option(
        "allreduce", "allreduce, zero1, fsdp, parameter_server, local_sgd or gossip."
    )
    """`zero1`: each rank updates a part and keeps the optimizer's state for that part alone
    (Rajbhandari et al. 2020). `fsdp`: each keeps a part of the parameters and gradients, too, and
    layers are gathered where they are used (docs/sharded.rst). `local_sgd` and `gossip`: see
    `mpicoll.train.strategies.apart`."""
    gather: str = option("all", "Of fsdp: all (a part of each layer) or broadcast (whole layers).")
    """What a rank owns: `all`: an even part of each layer, gathered by an all-gather; `broadcast`:
    every so manieth layer, which it sends to the others."""
    keep_gathered: bool = option(
        False, "Of fsdp: gather layers once a step, and keep them.", "--keep-gathered"
    )
    """For as many bytes as an all-reduce, and the memory of all parameters (ZeRO-2). With
    `accumulate` gradients are summed once a step, too, for the memory of all of them."""
    mesh: str | None = option(
        None, "Ranks along each axis, as data=2,pipe=2,tensor=1.", metavar="AXES"
    )
    """`data`: replicas of the model, each with its share of the batch; as many as there are ranks
    for, where it is left out. `pipe`: stages that share the layers. `tensor`: neighbouring ranks
    that share each layer. None: all ranks are replicas."""
    microbatches: int | None = option(
        None, "Of pipe: parts of a replica's share of a batch; 4 a stage."
    )
    """None: one where there is one stage."""
    pipeline_schedule: str = option(
        "1f1b", "Of pipe: order of a step's passes, such as gpipe or zb_h1."
    )
    """One of `mpicoll.train.step.names()`; `schedule` is that of the learning rate."""
    ahead: int | None = option(None, "Of 1f1b: forward passes further ahead, a stage.")
    chunks: int | None = option(None, "Of interleaved: chunks of layers of each rank.")
    cut: str = option("even", "Of pipe: even, auto, or the first layer of each chunk: 0,3,7.")
    """`auto`: the slowest chunk takes least, by the time of each layer, measured at the start. A
    run that is resumed keeps the cut of its checkpoint, if it has as many chunks."""
    recompute: bool = option(
        False, "Of pipe: run forward passes again on the way back.", "--recompute"
    )
    """Ranks keep the inputs of their chunks alone in between."""
    timeline: str | None = option(
        None, "Of pipe: write there what all ranks do in the first steps.", metavar="FILE"
    )
    """In the format of the trace viewers of Chrome and Perfetto."""
    servers: str = option("colocated", "Of parameter_server: a number, colocated or decentralized.")
    """So many ranks, the last, serve and do nothing else; `colocated`: every rank works and serves
    a part; `decentralized`: every rank works and holds all, workers push to each other."""
    consistency: str = option("bsp", "Consistency: bsp, ssp:S, adaptive:MIN,MAX[,M] or async.")
    """See `mpicoll.train.servers.consistency`."""
    push_rate: str = option(
        "share", "Learning rate of a push outside of bsp: share, staleness or full."
    )
    """Where each push makes an update: times its `share` of the samples of a step, divided by one
    plus its `staleness`, or in `full`."""
    workers: int | None = option(None, "Refuse to start unless so many ranks compute.")
    """Checked against what `servers` leaves of the ranks that were started; None: whatever is
    left."""
    replicas: int = option(0, "Number of backup servers of each server.")
    """As many may die (under Open MPI 5, `mpirun --with-ft ulfm`); `servers` is a number then."""
    send_every: int | None = option(None, "Servers push parameters every N updates.")
    """1: whenever there are new ones; None: workers ask for parameters."""
    apply_at_once: bool = option(
        False,
        "When to use what --send-every sends: between layers or steps.",
        "--apply-at-once/--apply-between",
    )
    average_every: int = option(8, "Steps between averages of local_sgd.")
    """Averages of the parameters."""
    graph: str = option("exponential", "Neighbours in gossip: ring or exponential.")
    algorithm: str | None = option(
        None, "All-reduce algorithm of the gradients; auto: the tuned choice, the default."
    )
    """In a program, None stands for auto. By an algorithm, arrays on GPUs go through the host."""
    bucket: int | str | None = option(
        None,
        "Size of a gradient bucket; model: chosen by MPICOLL_MODEL.",
        metavar="BYTES",
        words=str | None,
    )
    """None: `exchange.default_bucket`, also where ``MPICOLL_MODEL`` names no fitted model."""
    wire: str = option("full", "Type of gradients in messages: full, fp16, bf16, int8, topk:SHARE.")
    invariant: int | None = option(
        None, "Equal bits on any number of ranks up to V (16).", metavar="[=V]"
    )
    """Every batch is cut into V virtual shards (`mpicoll.train.exchange.tree`). None: sums depend
    on the number of ranks."""
    deterministic: bool = option(False, "Equal bits for every bucket size.", "--deterministic")
    """All-reduce algorithms in which the order of a sum depends on where in a bucket it is, such as
    ring, are refused."""
    survive: bool = option(
        False, "Go on when ranks die (Open MPI 5, mpirun --with-ft ulfm).", "--survive"
    )
    """The others go on from the last step that was made, and learn what all would have learnt."""
    spares: int = option(0, "Spare ranks, with --survive: they replace ranks that die.")
    """They take its place."""
    balance: str = option("none", "Balance of samples over ranks: none (equal) or speed.")
    check_every: int = option(100, "Steps between comparisons of the ranks' parameters; 0: never.")
    checkpoint: str | None = option(None, "Write checkpoints to this folder.", metavar="FOLDER")
    checkpoint_every: int | None = option(None, "Steps between checkpoints; an epoch if not given.")
    keep: int = option(2, "Number of checkpoints to keep beside the best.")
    """The best is that with the lowest loss of the validation set, or else of the test set."""
    resume: str | None = option(
        None, "Resume from a checkpoint; auto: from the last, if any.", metavar="PATH"
    )
    """Or from the last in a folder of them; `auto`: the last in `checkpoint`."""
    metrics: str | None = option(
        None, "Write metrics (JSON lines) to this folder.", metavar="FOLDER"
    )
    tensorboard: str | None = option(
        None, "Write TensorBoard event files to this folder.", metavar="FOLDER"
    )
    hang_after: float | None = option(
        600.0, "Write all stacks if no step ends for so long.", metavar="SECONDS"
    )
    """None: never."""
