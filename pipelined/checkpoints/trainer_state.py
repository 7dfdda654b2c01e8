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

from torch import Tensor

from pipelined.actors.agree import agree, broadcast, gather
from pipelined.checkpoints import checkpoint
from pipelined.checkpoints.checkpoint import Checkpoint, CheckpointError, Meta
from pipelined.errors import UsageError
from pipelined.training.optimizer import updates_made
from pipelined.training.trainer import Trainer

MOST_UPDATES = 1 << 53
"""Of an optimizer, in a checkpoint: up to here a float counts each."""


async def save(
    trainer: Trainer, directory: Path, step: int, config: Mapping[str, Any], keep: int, *, claimed: bool = False
) -> Path:
    """Save the state after `step` steps; when it returns, on any rank, the checkpoint is whole on disk.

    Args:
        claimed: on rank 0: no other run can be saving there, so that what lies there unfinished is removed first.
    Returns: the checkpoint's path on rank 0, its directory's on the others.
    Raises:
        CheckpointError: on every rank; the checkpoints before it are as they were, and nothing is left of this one.
    """
    transport = trainer.context.actor.transport
    rank, ranks = transport.rank, transport.world_size
    cleaning = asyncio.to_thread(checkpoint.clean, directory) if claimed and not rank else asyncio.sleep(0)
    await agree(transport, f"clean {step}", cleaning)
    token = await broadcast(transport, f"token {step}", secrets.token_hex(4))
    state = {name: trainer.state_of(name) for name in trainer.local.state_names}

    def commit() -> Path:
        if rank:
            return directory
        records, updates = zip(*told, strict=True)
        scalars = {"seed": trainer.context.seed, "updates": max(updates)}
        meta = Meta(step, trainer.model.identity(), config, scalars)
        return checkpoint.commit(directory, meta, records, keep, token)

    try:
        writing = asyncio.to_thread(checkpoint.write_shard, directory, step, rank, ranks, state, token=token)
        record = await agree(transport, f"shard {step}", writing)
        told = await gather(transport, f"records {step}", [record, updates_made(trainer.optimizer)])
        return await agree(transport, f"commit {step}", asyncio.to_thread(commit))
    except UsageError:
        if not rank:
            await asyncio.to_thread(checkpoint.discard, directory, step, token)
        raise


async def load(trainer: Trainer, path: Path) -> int:
    """Load what this rank holds out of a checkpoint; returns how many steps had been done.

    Raises:
        CheckpointError: on every rank: of another model, damaged, or not there. The trainer is as it was.
    """

    def read() -> tuple[int, int, dict[str, Any]]:
        found = checkpoint.open(path).require(trainer.model.identity())
        state, updates = found.load(trainer.local.tensors), _updates(found)
        _require_shapes(found.path, trainer.local.tensors, state)
        return found.meta.step, updates, state

    step, updates, state = await agree(trainer.context.actor.transport, "load", asyncio.to_thread(read))
    trainer.restore(state, updates)
    return step


def _updates(found: Checkpoint) -> int:
    """How many updates a checkpoint's optimizer had made; older ones do not say, and made one a step."""
    updates = found.meta.scalars.get("updates", found.meta.step)
    if type(updates) is not int or not 0 <= updates <= MOST_UPDATES:
        fact = f"{found.path} is damaged (updates: {updates!r}, should be a number from 0 to {MOST_UPDATES})"
        raise CheckpointError(f"{fact}; resume from another checkpoint")
    return updates


def _require_shapes(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Refuse tensors, or what an optimizer keeps beside them, of other shapes than this rank holds."""
    for name, tensor in tensors.items():
        if "value" not in state[name]:
            fact = f"{path} is damaged (it has no value of {name}, but: {', '.join(state[name]) or 'nothing'})"
            raise CheckpointError(f"{fact}; resume from another checkpoint")
        for field, saved in state[name].items():
            if saved.shape != tensor.shape:
                fact = f"{path} has {name} ({field}) in another shape (saved: {tuple(saved.shape)}, "
                remedy = "resume with the model that was saved, or start anew in another directory"
                raise CheckpointError(f"{fact}model: {tuple(tensor.shape)}); {remedy}")
