"""A small transformer learns to write Python, by PyTorch's DDP or FSDP2 on the backend "mpicoll".

    mpirun -n 4 python -m mpicoll.torch examples/torch_transformer.py [--parallel fsdp]
        [--steps 200] [--width 128] [--layers 2] [--batch 16] [--sample 128]

The text is the source of Python's own library, byte by byte: nothing is downloaded.  Every rank
takes other places of it.  Rank 0 prints the loss, the mean of all ranks, in nats a byte, and what
the model writes in the end.  The program is one for any backend of torch.distributed: the backend's
name is all that is mpicoll's in it.
"""

from __future__ import annotations

import argparse
import os
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BYTES, LENGTH = 256, 64


class Model(nn.Module):
    """A decoder: the next byte of each of the bytes of a text."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.byte, self.place = nn.Embedding(BYTES, width), nn.Embedding(LENGTH, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, BYTES)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        length = text.shape[1]
        hidden = self.byte(text) + self.place(torch.arange(length))
        ahead = nn.Transformer.generate_square_subsequent_mask(length)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=ahead, is_causal=True)
        scores: torch.Tensor = self.head(hidden)
        return scores


def library(files: int) -> torch.Tensor:
    """The source of some files of Python's library, one behind the other."""
    paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:files]
    return torch.frombuffer(bytearray(b"".join(p.read_bytes() for p in paths)), dtype=torch.uint8)


def batch(text: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pieces of the text from anywhere, and the same pieces a byte later."""
    starts = torch.randint(len(text) - LENGTH, (rows, 1))
    pieces = text[starts + torch.arange(LENGTH + 1)].long()
    return pieces[:, :-1], pieces[:, 1:]


def distributed(model: Model, how: str) -> nn.Module:
    """The model of all ranks: a copy on each, or a part of it."""
    if how == "ddp":
        return DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def written(model: nn.Module, count: int, start: bytes = b"def ") -> str:
    """What the model writes after some bytes; all ranks take part."""
    text = torch.tensor([[*start]])
    with torch.no_grad():
        for _ in range(count):
            scores = model(text[:, -LENGTH:])[:, -1]
            text = torch.cat([text, scores.argmax(-1, keepdim=True)], 1)
    return bytes(text[0].tolist()).decode("utf-8", "replace")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--parallel", choices=["ddp", "fsdp"], default="ddp")
    parser.add_argument("--backend", default="mpicoll")
    for name, value in {
        "steps": 200,
        "width": 128,
        "layers": 2,
        "batch": 16,
        "sample": 128,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--files", type=int, default=10**6, help="of the library, at most")
    parser.add_argument("--report", type=int, default=20, help="steps between two reports")
    options = parser.parse_args()

    dist.init_process_group(options.backend)
    first = os.environ["RANK"] == "0"
    text = library(options.files)
    torch.manual_seed(0)  # the same model on all ranks, ...
    model = distributed(Model(options.width, options.layers), options.parallel)
    torch.manual_seed(1 + dist.get_rank())  # ... and other pieces of the text
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    begin = time.perf_counter()
    for step in range(options.steps):
        inputs, targets = batch(text, options.batch)
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % options.report == 0:
            mean = loss.detach()
            dist.all_reduce(mean, dist.ReduceOp.SUM)
            if first:
                seconds = time.perf_counter() - begin
                print(f"step {step} loss {mean / dist.get_world_size():.3f} {seconds:.1f} s")
    sample = written(model, options.sample)
    if first:
        print(sample)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
