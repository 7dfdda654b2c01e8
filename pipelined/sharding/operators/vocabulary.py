"""Embedding and cross-entropy where the vocabulary is split: one layout of the matrix serves head and embedding.

The matrix (V, C) lies as the transposed weight of the head's multiplication: rank (c, b) of a row of ranks holds the
rows c' · p1 + b for every c', and of them column block c. The head multiplies by it. The embedding looks up the ids
that it holds, 0 for the others, and the embedding is the sum over b.

Shapes: B sequences, T tokens of a sequence, C width, V vocabulary. Embedding and product take any lead for (B, T).
"""

from functools import partial

import torch
from torch.nn import functional

from pipelined.sharding.layout import Layout
from pipelined.sharding.operators.matmul import LEAD, SplitMatmul, is_looped
from pipelined.sharding.operators.verbs import Operand, Value, Verbs, unshard
from pipelined.sharding.shards import Ranges, Shards


def ids_shards(head: SplitMatmul, lead: tuple[int, ...]) -> Shards:
    """How ids (B, T) lie: every rank of a row of ranks has those of its sequences."""
    return Shards(head.mesh, lead, "S0:rows")


async def embed(verbs: Verbs, head: SplitMatmul, ids: Value, weight: Operand) -> Value:
    """The rows of the matrix for ids.

    Args:
        ids: (B, T), as `ids_shards`.
        weight: this rank's piece of the matrix, of `head.table`, or a sharded one; see `multiply`.
    Returns: (B, T, C), split over all ranks.
    Cost: (p1-1)/p1 · B·T·C/(p0·p2) elements. In a loop one panel of the matrix is gathered at a time.
    """
    held_ids = head.table.pieces(verbs.rank)[0]
    if not is_looped(weight, head):
        return await _embed_panel(verbs, head, ids, await unshard(verbs, weight, head.table), held_ids)
    parts = []
    for panel in head.panels:
        rows = await unshard(verbs, panel.cut_weight(weight, transposed=True), panel.operator.table)
        parts.append(await _embed_panel(verbs, panel.operator, ids, rows, held_ids))
    return await verbs.compute("join", _join_panels, *parts, result=head.input_shards(ids.shards.lengths))


async def _embed_panel(verbs: Verbs, head: SplitMatmul, ids: Value, rows: Operand, held_ids: Ranges) -> Value:
    lead = ids.shards.lengths
    summand = Shards(head.mesh, lead + head.inputs, f"S0:rows S{len(lead)}:contraction P:columns")
    embedded = await verbs.compute("embedding", lambda x, rows: look_up(x, rows, held_ids), ids, rows, result=summand)
    return await verbs.move(embedded, head.input_shards(lead))


def _join_panels(*panels: torch.Tensor) -> torch.Tensor:
    return torch.cat(panels, -1).flatten(-2)


def look_up(ids: torch.Tensor, rows: torch.Tensor, held_ids: Ranges) -> torch.Tensor:
    """The rows for ids of which only some are held, 0 for the others."""
    index, inside = find_places(ids, held_ids)
    if not rows.shape[0]:
        return rows.new_zeros(*ids.shape, *rows.shape[1:])
    return (functional.embedding(index, rows.flatten(1)) * inside[..., None]).view(*ids.shape, *rows.shape[1:])


def find_places(ids: torch.Tensor, held_ids: Ranges) -> tuple[torch.Tensor, torch.Tensor]:
    """For each id its place among those held, 0 where it is not held, and whether it is."""
    index = torch.zeros_like(ids)
    inside = torch.zeros_like(ids, dtype=torch.bool)
    offset = 0
    for low, high in held_ids:
        in_range = (ids >= low) & (ids < high)
        index, inside = torch.where(in_range, ids - low + offset, index), inside | in_range
        offset += high - low
    return index, inside


async def cross_entropy(verbs: Verbs, x: Value, targets: Value) -> Value:
    """The mean cross-entropy in nats a token, computed in float32, or in float64 where the logits are.

    Args:
        x: logits (B, T, V), split over all ranks.
        targets: ids (B, T), as `ids_shards` of the logits' mesh.
    Returns: the loss, a sum over the axis `rows`; of its gradient every rank has the whole.
    Cost: 3 numbers a token reduced to all ranks of a row in the forward, nothing in the backward.
    """
    shape = x.shards.lengths
    held_ids = x.shards.pieces(verbs.rank)[LEAD]
    mesh = x.shards.mesh
    split = ("contraction", "columns")
    rows = {0: ("rows",)}

    def shards(lengths: tuple[int, ...], op: str) -> Shards:
        return Shards(mesh, lengths, Layout.of(rows, dict.fromkeys(split, op)))

    largest = await verbs.compute("maximum", _largest_logit, x, result=shards(shape[:LEAD], "max"), constant=True)
    largest = await verbs.move(largest, Shards(mesh, shape[:LEAD], Layout.of(rows)))
    pair = (*shape[:LEAD], 2)
    work = partial(_sums, held_ids)
    sums = await verbs.compute("exponentials", work, x, largest, targets, result=shards(pair, "sum"))
    sums = await verbs.move(sums, Shards(mesh, pair, Layout.of(rows)), replicated=split)
    tokens = shape[0] * shape[1]
    return await verbs.compute("loss", lambda total: _loss(total) / tokens, sums, result=Shards(mesh, (), "P:rows"))


def _widen(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _largest_logit(x: torch.Tensor) -> torch.Tensor:
    """The largest logit of each token among those held, without a gradient: the loss does not depend on it."""
    if not x.shape[LEAD]:
        return _widen(x).new_full(x.shape[:LEAD], float("-inf"))
    return _widen(x).detach().amax(LEAD)


def _sums(held_ids: Ranges, x: torch.Tensor, largest: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """For each token, among the held ids: the sum of exponentials, and the target's logit or 0; less the largest."""
    shifted = _widen(x) - largest[..., None]
    index, inside = find_places(targets, held_ids)
    logits = shifted.gather(LEAD, index[..., None])[..., 0] * inside if shifted.shape[LEAD] else shifted.sum(LEAD)
    return torch.stack([shifted.exp().sum(LEAD), logits], LEAD)


def _loss(sums: torch.Tensor) -> torch.Tensor:
    return (sums[..., 0].log() - sums[..., 1]).sum()
