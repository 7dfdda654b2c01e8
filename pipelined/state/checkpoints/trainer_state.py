"""Saving and loading the state of a trainer: which rank writes what, and how all ranks agree on success.

The owner of a parameter writes it, with its optimizer state; the first holder of a persistent buffer writes it. The
first holder of a piece of a tensor that a team splits writes that piece. Holders that divide the update of a parameter
write what they update. A load reads on each rank the tensors or pieces that it holds, at any depth, width, schedule or
number of ranks a worker. Files are written outside the event loop; `CheckpointSaver` does so while training goes on.
"""

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from collectives.objects import broadcast_object, gather_objects
from pipelined.actors.agree import agree
from pipelined.errors import UsageError
from pipelined.sharding.shards import TensorPart
from pipelined.state.checkpoints import checkpoint
from pipelined.state.checkpoints.checkpoint import Checkpoint, State, open_checkpoint
from pipelined.state.checkpoints.manifest import Meta
from pipelined.state.checkpoints.records import CheckpointError
from pipelined.training.optimizer.state import has_shape_of_parameter
from pipelined.training.rank_trainer import RankTrainer
from pipelined.training.segments.loss_scale import LossScale
from transports import Transport

OPTIMIZER = "optimizer"
"""The scalar of a checkpoint that names the class of rank 0's optimizer."""
MAX_UPDATES = 1 << 53
"""The most updates of an optimizer in a checkpoint: up to this number a float is exact."""


@dataclass(frozen=True)
class SaveTarget:
    """Where and how a run saves.

    Args:
        directory: the directory of checkpoints.
        keep: the number of checkpoints to keep.
        config: what they record of the run.
        claimed: on rank 0: whether no other run can be saving there; then unfinished saves are removed first.
    """

    directory: Path
    keep: int
    config: Mapping[str, Any] = field(default_factory=dict)
    claimed: bool = False


@dataclass(frozen=True)
class RankState:
    """What one rank saves.

    Args:
        step: steps done.
        scalars: the same on all ranks.
        state: by name, the tensors that this rank writes; they change with the next step.
        parts: what the rank holds of those that it does not hold whole.
        updates: that its optimizer has made.
    """

    step: int
    identity: Mapping[str, Any]
    scalars: Mapping[str, Any]
    state: State
    parts: Mapping[str, TensorPart]
    updates: int

    @classmethod
    async def of(cls, trainer: RankTrainer, step: int) -> "RankState":
        """What this rank of a trainer saves after `step` steps; waits for an update that is under way."""
        await trainer.rank_optimizer.finish_update()
        saved_parts = trainer.local.saved
        state = {name: trainer.state_of(name) for name in saved_parts}
        parts = {name: part for name, part in saved_parts.items() if part is not None}
        scalars = {"seed": trainer.job.seed, OPTIMIZER: _optimizer_of(trainer), **trainer.loss_scale.state}
        return cls(step, trainer.model.identity(), scalars, state, parts, trainer.rank_optimizer.state.updates)

    def copy_to_host(self) -> "RankState":
        """The same with tensors of its own in host memory. Cost: one copy of every byte."""
        state = {
            name: {field: tensor.detach().to("cpu", copy=True) for field, tensor in fields.items()}
            for name, fields in self.state.items()
        }
        return replace(self, state=state)


async def save(trainer: RankTrainer, step: int, target: SaveTarget) -> Path:
    """Save the state after `step` steps; when this returns on any rank, the whole checkpoint is on disk.

    Returns, Raises: as of `write`.
    """
    return await write(trainer.context.actor.transport, await RankState.of(trainer, step), target)


async def write(transport: Transport, snapshot: RankState, target: SaveTarget) -> Path:
    """Write a snapshot of every rank; all ranks call this. The tensors must not change before it returns.

    Returns: the path of the checkpoint on rank 0, that of the directory of checkpoints on the others.
    Raises:
        CheckpointError: on every rank; earlier checkpoints are unchanged, and the files of this one are removed.
    """
    rank, step, directory = transport.rank, snapshot.step, target.directory
    cleaning = asyncio.to_thread(checkpoint.clean, directory) if target.claimed and not rank else asyncio.sleep(0)
    await agree(transport, f"clean {step}", cleaning)
    token = await broadcast_object(transport, f"token {step}", secrets.token_hex(4))

    def commit() -> Path:
        if rank:
            return directory
        records, updates = zip(*gathered, strict=True)
        scalars = {**snapshot.scalars, "updates": max(updates)}
        meta = Meta(step, snapshot.identity, target.config, scalars)
        return checkpoint.commit(directory, meta, records, target.keep, token)

    try:
        ranks, state, parts = transport.world_size, snapshot.state, snapshot.parts
        shard = partial(checkpoint.write_shard, directory, step, rank, ranks, state, token=token, parts=parts)
        record = await agree(transport, f"shard {step}", asyncio.to_thread(shard))
        gathered = await gather_objects(transport, f"records {step}", [record, snapshot.updates])
        return await agree(transport, f"commit {step}", asyncio.to_thread(commit))
    except UsageError:
        if not rank:
            await asyncio.to_thread(checkpoint.discard, directory, step, token)
        raise


async def load(trainer: RankTrainer, path: Path) -> int:
    """Load the tensors that this rank holds from a checkpoint; returns the number of steps done.

    Raises:
        CheckpointError: on every rank: another model or optimizer, a damaged or a missing checkpoint. The trainer is
            unchanged.
    """

    def read() -> tuple[Meta, int, dict[str, Any]]:
        source = open_checkpoint(path).require(trainer.model.identity())
        _require_optimizer(source, trainer)
        tensors, team = trainer.local.tensors, trainer.local.team
        state = source.load(tensors, team.parts(tensors))
        updates = _updates(source)
        _require_shapes(source.path, tensors, state)
        _require_loss_scale(source)
        return source.meta, updates, state

    meta, updates, state = await agree(trainer.context.actor.transport, "load", asyncio.to_thread(read))
    await trainer.rank_optimizer.finish_update()
    trainer.restore(state, updates)
    trainer.loss_scale.restore(meta.scalars)
    return meta.step


def _optimizer_of(trainer: RankTrainer) -> str:
    return type(trainer.optimizer).__name__


def _require_optimizer(source: Checkpoint, trainer: RankTrainer) -> None:
    """Refuse the state of another optimizer, by the class on rank 0; older checkpoints have none."""
    own_optimizer = _optimizer_of(trainer)
    saved_optimizer = source.meta.scalars.get(OPTIMIZER, own_optimizer)
    if saved_optimizer != own_optimizer and not trainer.context.actor.rank:
        fact = f"{source.path} has the state of another optimizer (saved: {saved_optimizer}, here: {own_optimizer})"
        raise CheckpointError(f"{fact}; resume with {saved_optimizer}, or begin anew with the exported values")


def _updates(source: Checkpoint) -> int:
    """The updates that a checkpoint's optimizer had made; older checkpoints lack this number and made one per step."""
    updates = source.meta.scalars.get("updates", source.meta.step)
    if type(updates) is not int or not 0 <= updates <= MAX_UPDATES:
        fact = f"{source.path} is damaged (updates: {updates!r}, should be a number from 0 to {MAX_UPDATES})"
        raise CheckpointError(f"{fact}; resume from another checkpoint")
    return updates


def _require_loss_scale(source: Checkpoint) -> None:
    try:
        LossScale(dynamic=True).restore(source.meta.scalars)
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{source.path} is damaged ({error}); resume from another checkpoint") from error


def _require_shapes(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Refuse tensors, or their optimizer state, if their shapes differ from the tensors that this rank holds."""
    for name, tensor in tensors.items():
        if "value" not in state[name]:
            fact = f"{path} is damaged (it has no value of {name}, but: {', '.join(state[name]) or 'nothing'})"
            raise CheckpointError(f"{fact}; resume from another checkpoint")
        for key, saved_tensor in state[name].items():
            if has_shape_of_parameter(key) and saved_tensor.shape != tensor.shape:
                shapes = f"saved: {tuple(saved_tensor.shape)}, model: {tuple(tensor.shape)}"
                remedy = "resume with the model that was saved, or start anew in another directory"
                raise CheckpointError(f"{path} has {name} ({key}) in another shape ({shapes}); {remedy}")
