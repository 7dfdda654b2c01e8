"""Divided updates (ZeRO-1): each of the ranks that hold the same parameters updates some of their rows.

Without that every holder of a parameter gets the whole sum of its gradients, keeps the whole state of its
optimizer, and makes the same update. With it each rank receives the sum for its own rows (a reduce-scatter), keeps
optimizer state for them and updates them. An all-gather then distributes the new values. Both ways send the same bytes.
A rank keeps 1/R of its optimizer's state, where R ranks hold the parameter: W groups, the replicas of a bidirectional
schedule, and those members of a team that hold the same piece.

Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, 2020, section 5.1.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import nn

from collectives.arrays import Range
from pipelined.programs.updates.bucket_names import Stages
from pipelined.training.teams.pieces import Copies

LANES = 32
"""The most elements that a vector instruction takes: 64 bytes of 16-bit numbers. Torch's fused updates round the
tail after the last whole vector differently. So parameters are cut at multiples of this, and an element is updated by
the same instruction as in the whole."""


@dataclass(frozen=True)
class BucketShare:
    """Neighbouring parameters of a bucket that the same ranks hold, and how these divide them.

    Args:
        stages: of the bucket.
        copies: which members of a team hold the same piece of these parameters.
        holders: the ranks, ascending.
        span: the elements of the bucket's gradient, [low, high).
        lengths: how many of these each holder updates, one after another: rows of a parameter.
    """

    stages: Stages
    copies: Copies
    holders: tuple[int, ...]
    span: Range
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class UpdateShards:
    """The part of the parameters of a bucket that one rank updates.

    Args:
        shares: of all these parameters, in the bucket's order.
        spans: of each parameter of which the rank updates anything: its elements in the bucket's gradient.
        rows: where that is not the whole parameter, the rows: [low, high) of its first dimension.
        updated: these rows as parameters of their own, in the memory of the whole ones.
    """

    shares: tuple[BucketShare, ...]
    spans: Mapping[str, Range]
    rows: Mapping[str, Range]
    updated: Mapping[str, nn.Parameter]


def shard_update(
    parameters: Mapping[str, nn.Parameter],
    holders: Mapping[str, tuple[Copies, tuple[int, ...]]],
    *,
    stages: Stages,
    rank: int,
) -> UpdateShards:
    """Divide the parameters of a bucket.

    Args:
        parameters: by name, in the bucket's order; those with the same copies are neighbours.
        holders: of each parameter the copies, and the ranks that hold what this rank holds of it.
    """
    shares = list[BucketShare]()
    spans = dict[str, Range]()
    low = 0
    for copies, ranks in dict.fromkeys(holders[name] for name in parameters):
        same_copies = {name: parameter for name, parameter in parameters.items() if holders[name] == (copies, ranks)}
        lengths = cut_by_rows([tuple(parameter.shape) for parameter in same_copies.values()], len(ranks))
        share = BucketShare(stages, copies, ranks, (low, low + sum(lengths)), tuple(lengths))
        shares.append(share)
        holder_index = ranks.index(rank)
        start = low + sum(lengths[:holder_index])
        for name, span in _spans_within(same_copies, low, (start, start + lengths[holder_index])).items():
            is_first_of_empty = holder_index == 0 and not same_copies[name].numel()
            if span[0] < span[1] or is_first_of_empty:
                spans[name] = span
        low = share.span[1]
    return UpdateShards(tuple(shares), spans, *_rows_to_update(parameters, spans))


def cut_by_rows(shapes: Sequence[tuple[int, ...]], parts: int) -> list[int]:
    """The elements of each of some parts of neighbouring parameters: as equal as whole rows and vectors allow.

    Args:
        shapes: of the parameters. A row is what one index of the first dimension has; a scalar has one.
    """
    sizes = [torch.Size(shape).numel() for shape in shapes]
    starts = [0, *accumulate(sizes)]
    ends = [0]
    for part in range(1, parts):
        offset = starts[-1] * part // parts
        index = min(bisect_right(starts, offset), len(sizes)) - 1
        row = math.prod(shapes[index][1:]) or 1  # also of a scalar, and where a row has no elements
        step = math.lcm(row, LANES)
        ends.append(starts[index] + (offset - starts[index]) // step * step)
    return [high - low for low, high in pairwise([*ends, starts[-1]])]


def _spans_within(parameters: Mapping[str, nn.Parameter], low: int, span: Range) -> dict[str, Range]:
    """The elements of a span that belong to each of these parameters, which lie one after another from `low` on."""
    spans = {}
    for name, parameter in parameters.items():
        high = low + parameter.numel()
        start = min(max(low, span[0]), high)
        spans[name] = start, max(start, min(high, span[1]))
        low = high
    return spans


def _rows_to_update(
    parameters: Mapping[str, nn.Parameter], spans: Mapping[str, Range]
) -> tuple[dict[str, Range], dict[str, nn.Parameter]]:
    """The rows of those parameters that are updated in part, and what is updated of each."""
    rows = dict[str, Range]()
    updated = dict[str, nn.Parameter]()
    low = 0
    for name, parameter in parameters.items():
        if name in spans:
            updated[name] = parameter
            (start, stop) = spans[name]
            if stop - start < parameter.numel():
                row = parameter.numel() // parameter.shape[0]
                first, last = rows[name] = (start - low) // row, (stop - low) // row
                updated[name] = nn.Parameter(parameter.detach()[first:last])
        low += parameter.numel()
    return rows, updated
