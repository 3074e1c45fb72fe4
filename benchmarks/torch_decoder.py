"""The decoder of `mpicoll.train.models.transformer` as a PyTorch module, for comparisons."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Attention(nn.Module):
    """Causal attention; one matrix makes queries, keys and values, and keys have no bias."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.weight = nn.Parameter(torch.empty(width, 3 * width))
        self.query_bias = nn.Parameter(torch.zeros(width))
        self.value_bias = nn.Parameter(torch.zeros(width))
        self.out_weight = nn.Parameter(torch.empty(width, width))
        self.out_bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` is (samples, tokens, width)."""
        bias = torch.cat([self.query_bias, torch.zeros_like(self.query_bias), self.value_bias])
        joint = torch.addmm(bias, x.flatten(0, 1), self.weight)
        parts = joint.view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        rows = mixed.transpose(1, 2).reshape(-1, x.shape[-1])
        return torch.addmm(self.out_bias, rows, self.out_weight).view_as(x)


class Added(nn.Module):
    """Adds to its inputs what layers make of them."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` is (samples, tokens, width)."""
        return x + self.layers(x)


class Decoder(nn.Module):
    """Scores of the next token; embedding and scores share their vectors."""

    def __init__(self, tokens: int, context: int, width: int, blocks: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(tokens, width))
        self.position = nn.Parameter(torch.empty(context, width))
        norm = nn.LayerNorm
        layers: list[nn.Module] = []
        for _ in range(blocks):
            dense = nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
            layers += [Added(norm(width), Attention(width, heads)), Added(norm(width), *dense)]
        self.layers = nn.Sequential(*layers, norm(width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """`tokens` is (samples, context); scores are (samples, context, tokens)."""
        vectors = nn.functional.embedding(tokens, self.embedding) + self.position
        return nn.functional.linear(self.layers(vectors), self.embedding)


def copy_parameters(net: Decoder, parameters: dict[str, Any]) -> None:
    """Parameters of mpicoll's decoder into the module; both have them in one order."""
    linear = {id(module.weight) for module in net.modules() if isinstance(module, nn.Linear)}
    for own, array in zip(net.parameters(), parameters.values(), strict=True):
        value = torch.from_numpy(array)
        # Linear holds (outputs, inputs), Dense (inputs, outputs).
        own.data.copy_(value.T if id(own) in linear else value)
