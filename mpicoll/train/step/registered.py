"""The orders that come with mpicoll, and their registered numbers.

S is the number of ranks, M of microbatches, r a rank and m a microbatch; `t` are the durations of
all chunks of a rank.
"""

from __future__ import annotations

from mpicoll.train.step import orders
from mpicoll.train.step.catalogue import register
from mpicoll.train.step.tasks import Durations, folded


def _filled(S: int, M: int, t: Durations, **parameters: int) -> int:
    return (M + S - 1) * (t.forward + t.backward)


def _interleaved(S: int, M: int, t: Durations, chunks: int) -> int:
    return M * (t.forward + t.backward) + (S - 1) * (t.forward + t.backward) // chunks


def _zb_h1(S: int, M: int, t: Durations) -> int:
    return M * (t.forward + t.backward) + (S - 1) * (t.forward + t.backward - 2 * t.weight)


def _zb_h2(S: int, M: int, t: Durations) -> int:
    return M * (t.forward + t.backward) + (S - 1) * t.forward


def _messages(S: int, M: int, chunks: int = 1, **parameters: int) -> int:
    """Forward and backward over every edge, for each microbatch."""
    return 2 * M * (S * chunks - 1) if S > 1 else 0


def _versions(r: int, S: int, M: int, vertical: bool) -> int:
    lag = S - 1 if vertical else S - 1 - r
    early = min(lag, M - 1)
    return min(early, M - early) + 1


def _staleness(m: int, r: int, S: int, M: int, vertical: bool) -> int:
    return min(m, S - 1 if vertical else S - 1 - r)


_GPIPE = "Huang et al., GPipe, NeurIPS 2019, section 2"
_PIPEDREAM = "Narayanan et al., PipeDream, SOSP 2019, section 3"
_MEGATRON = (
    "Narayanan et al., Efficient large-scale language model training on GPU clusters, SC 2021"
)
_ZERO_BUBBLE = "Qi et al., Zero bubble pipeline parallelism, ICLR 2024"

register(
    "forward",
    orders.forward_only,
    trains=False,
    held=lambda r, S, M: 0,
    recomputed=None,
    messages=lambda S, M: M * (S - 1),
    makespan=lambda S, M, t: (M + S - 1) * t.forward,
    formula="(M+S−1)·F",
    reference="An evaluation in a pipeline",
)
register(
    "naive",
    orders.naive,
    held=lambda r, S, M: 1,
    messages=_messages,
    makespan=lambda S, M, t: M * S * (t.forward + t.backward),
    formula="M·S·(F+B)",
    reference=f"Model parallelism as in {_GPIPE}, figure 2b",
)
register(
    "gpipe",
    orders.gpipe,
    held=lambda r, S, M: M,
    messages=_messages,
    makespan=_filled,
    formula="(M+S−1)·(F+B)",
    reference=_GPIPE,
)
register(
    "1f1b",
    orders.one_f_one_b,
    held=lambda r, S, M, ahead: min((S - 1 - r) * (1 + ahead) + 1, M),
    slots=lambda S, M, ahead: 1 + ahead // 2,
    messages=_messages,
    makespan=_filled,
    formula="(M+S−1)·(F+B)",
    reference=f"PipeDream-Flush in {_MEGATRON}, section 2.2",
)
register(
    "interleaved",
    orders.interleaved,
    held=lambda r, S, M, chunks: min(2 * (S - 1 - r) + (chunks - 1) * S + 1, M * chunks),
    messages=_messages,
    makespan=_interleaved,
    valid=lambda S, M, t, chunks: M % S == 0,
    where="S divides M",
    formula="M·(F+B) + (S−1)·(F+B)/v",
    reference=f"{_MEGATRON}, section 2.2",
)
register(
    "zb_h1",
    orders.zb_h1,
    splits=True,
    held=lambda r, S, M: min(S, M),
    recomputed=lambda r, S, M: min(r + 1, M),
    messages=_messages,
    makespan=_zb_h1,
    valid=lambda S, M, t: M >= 2 * S - 1 and t.weight <= min(t.forward, t.input),
    where="M ≥ 2S−1, W ≤ F, W ≤ I",
    formula="M·(F+I+W) + (S−1)·(F+I−W)",
    reference=f"{_ZERO_BUBBLE}, section 2.1",
)
register(
    "zb_h2",
    orders.zb_h2,
    splits=True,
    held=lambda r, S, M: min(2 * S - 1, M),
    recomputed=lambda r, S, M: min(2 * r + 1, M),
    messages=_messages,
    makespan=_zb_h2,
    valid=lambda S, M, t: M >= 2 * S and t.input <= t.weight <= t.forward,
    where="M ≥ 2S, I ≤ W ≤ F",
    formula="M·(F+I+W) + (S−1)·F",
    reference=f"{_ZERO_BUBBLE}, section 2.2",
)
register(
    "zb_v",
    orders.zb_v,
    splits=True,
    place=folded,
    fixed_chunks=2,
    held=lambda r, S, M: min(2 * S, 2 * M),
    held_is_bound=True,
    recomputed=lambda r, S, M: min(2 * S, 2 * M),
    messages=lambda S, M: 4 * M * (S - 1),
    reference=f"{_ZERO_BUBBLE}, section 6; the order here is found greedily",
)
register(
    "pipedream",
    orders.pipedream,
    updates=True,
    held=lambda r, S, M, vertical: min(S - r, M),
    messages=_messages,
    versions=_versions,
    staleness=_staleness,
    makespan=_filled,
    formula="(M+S−1)·(F+B)",
    reference=_PIPEDREAM,
)
