"""Applied steps: fetches from a donor the totals of steps that a peer missed.

A step is identified by the version before it, so a peer applies a fetched step only to the state that it belongs to.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pipelined.membership.messaging.client import MemberClient
from pipelined.membership.view import Member
from pipelined.state.stages.chunks import TransferError
from pipelined.state.stages.messages import FetchTotals, MissedTotals
from pipelined.state.stages.versions import Version
from transports import Block


class AppliedStep(NamedTuple):
    """One optimizer step that a stage's peers applied: between which versions, and with which total and scale.

    Args:
        total, scale: see `StatefulStage.apply`; after a scale of 0 the number of steps is the same.
    """

    version_before: Version
    version_after: Version
    total: np.ndarray
    scale: float


async def fetch_steps(
    client: MemberClient, donor: Member, version: Version, template: np.ndarray, limit: float | None = None
) -> list[AppliedStep]:
    """Fetch the first steps that a donor applied after this version, in order; at least one.

    Args:
        template: an array with the dtype and shape of the totals.
        limit: time-out in seconds.
    Raises:
        Rejected: "not kept": the donor applied no such step, or no longer keeps its total.
        NoLongerValid: the donor is gone, or timed out.
        TransferError: the reply is malformed.
    """
    reply = await client.request(donor, FetchTotals(*version, 0), limit)
    total = np.empty_like(template)
    start = 0
    if len(reply.totals) != 1:
        return list(_steps_of(reply, version, template))
    while (start := _take_part(reply, total, start)) < template.size:
        reply = await client.request(donor, FetchTotals(*version, start), limit)
    return list(_steps_of(replace(reply, totals=(Block.of(total),)), version, template))


def _take_part(reply: MissedTotals, total: np.ndarray, start: int) -> int:
    """Copy a part of a total, or all of it, to where it begins; returns where the next part does."""
    part = reply.totals[0] if len(reply.totals) == 1 else Block.of(b"")
    size = part.shape[0] if len(part.shape) == 1 else 0
    if part.dtype != total.dtype.name or not min(1, total.size) <= size <= total.size - start:
        fact = f"shape: {tuple(part.shape)}, here: {total.shape}, from: {start}"
        raise TransferError(f"a total of another stage ({fact})")
    total[start : start + size] = part.numpy()
    return start + size


def _steps_of(reply: MissedTotals, version: Version, template: np.ndarray) -> Iterator[AppliedStep]:
    if not len(reply.scales) == len(reply.lineages) == len(reply.totals):
        raise TransferError(f"totals without a scale and a lineage each (totals: {len(reply.totals)})")
    for block, scale, lineage in zip(reply.totals, reply.scales, reply.lineages, strict=True):
        if (block.dtype, tuple(block.shape)) != (template.dtype.name, template.shape):
            raise TransferError(f"a total of another stage (shape: {tuple(block.shape)}, here: {template.shape})")
        version_after = Version(version.step + (scale != 0), lineage)
        yield AppliedStep(version, version_after, block.numpy(), scale)
        version = version_after
