"""A trainer's state to and from disk: which rank writes what, and that all agree it worked.

Every parameter is written by the one rank that owns it, with its optimizer state, and every persistent buffer by its
first holder; each rank later reads what it holds, at whatever depth, width or schedule that is. Files are written off
the event loop.
"""

import asyncio
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelined import checkpoint
from pipelined.checkpoint import Checkpoint, Meta
from pipelined.errors import UsageError
from pipelined.exchange import gather, share
from pipelined.optimizer import updates_made
from pipelined.runtime import together
from pipelined.trainer import Trainer


async def save(
    trainer: Trainer, directory: Path, step: int, config: Mapping[str, Any], keep: int, claimed: bool = False
) -> Path:
    """Save the state after `step` steps; when it returns, on any rank, the checkpoint is whole on disk.

    Args:
        claimed: on rank 0: no other run can be saving there, so that what lies there unfinished is removed first.
    Returns: the checkpoint's path on rank 0, its directory's on the others.
    Raises:
        CheckpointError: on every rank; the checkpoints before it are as they were, and nothing is left of this one.
    """
    transport = trainer.seat.actor.transport
    rank, ranks = transport.rank, transport.world_size
    cleaning = asyncio.to_thread(checkpoint.clean, directory) if claimed and not rank else asyncio.sleep(0)
    await together(transport, f"clean {step}", cleaning)
    token = await share(transport, f"token {step}", secrets.token_hex(4))
    state = {name: trainer.state_of(name) for name in trainer.replica.state_names}

    def commit() -> Path:
        if rank:
            return directory
        records, updates = zip(*told, strict=True)
        scalars = {"seed": trainer.seat.seed, "updates": max(updates)}
        meta = Meta(step, trainer.model.identity(), config, scalars)
        return checkpoint.commit(directory, meta, records, keep, token)

    try:
        writing = asyncio.to_thread(checkpoint.write_shard, directory, step, rank, ranks, state, token)
        record = await together(transport, f"shard {step}", writing)
        told = await gather(transport, f"records {step}", [record, updates_made(trainer.optimizer)])
        return await together(transport, f"commit {step}", asyncio.to_thread(commit))
    except UsageError:
        if not rank:
            await asyncio.to_thread(checkpoint.discard, directory, step, token)
        raise


async def load(trainer: Trainer, path: Path) -> int:
    """Load what this rank holds out of a checkpoint; returns how many steps had been done.

    Raises:
        CheckpointError: on every rank: of another model, damaged, or not there.
    """

    def read() -> tuple[Checkpoint, dict[str, Any]]:
        found = checkpoint.open(path).require(trainer.model.identity())
        return found, found.load(trainer.replica.tensors)

    found, state = await together(trainer.seat.actor.transport, "load", asyncio.to_thread(read))
    trainer.restore(state, found.meta.scalars.get("updates", found.meta.step))
    return found.meta.step
