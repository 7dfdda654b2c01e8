"""Nodes that come while clusters train: late clusters get the optimizer's state, and new backups a whole stage.

Late clusters get it beside the average, from the nodes of the first cluster. The first round of a generation that
continues another has its snapshot before the first update, so what is sent is of the snapshot. Each node of the first
cluster sends each late node what both hold.

A new backup gets the state of its stage from the other node of its place. A generation that continues another begins
with nothing in flight, so this is all that it lacks. The other node copies it once, and trains on while it is sent. The
backup's inputs wait in its mailbox meanwhile; then it does, from the first instruction on, what the other one does.

Both are sent in chunks, because one tensor may be larger than the largest message. Imports torch.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import torch

from pipelined.actors.actor import Actor
from pipelined.membership.view import NoLongerValid
from pipelined.ravnest.averaging.refusals import Senders, are_finite
from pipelined.ravnest.records.generation import Generation
from pipelined.ravnest.stage.held_stage import HeldStage, HeldState
from pipelined.state.stages.chunks import CHUNK, Download, Manifest, TransferError, chunk_of, describe
from pipelined.state.tensor_specs import TensorSpecs
from pipelined.training.optimizer.state import VALUE
from transports import Block, Message, Nursery, PeerLost, Transport, TransportError
from transports.rpc.world import RankHolder
from transports.wire.frames import Key


class MomentsTransfer:
    """One node's part; a node of neither the first nor a late cluster does nothing.

    Args:
        rank: of this node among those of all clusters.
        layers: of the whole model, see `state_by_layer`.
        stage: of this node.
    """

    def __init__(
        self, rank: int, generation: Generation, layers: Sequence[Mapping[str, torch.Tensor]], stage: HeldStage
    ):
        self._rank, self._layers, self._stage = rank, layers, stage
        self._places = generation.all_places
        cluster = self._places[rank][0].cluster
        late = range(generation.established_clusters, len(generation.clusters))
        self._is_sender, self._is_receiver = cluster == 0, cluster in late
        self._other_clusters = late if self._is_sender else range(1)
        self._state = HeldState()

    async def copy(self) -> HeldState:
        """Copy what the first cluster is to send, and return it. Cost: the bytes of the optimizer's state."""
        if self._is_sender:
            self._state = await self._stage.copy_state(averages=False)
        return self._state

    async def exchange(self, world: Transport, senders: Senders) -> None:
        """Send the moments, or receive them.

        Args:
            world: of the nodes of all clusters.
        Raises:
            SliceRefused: what was received is no such state, or has numbers that are not finite. Else as
                `Transport.send` and `Transport.receive`.
        """
        try:
            if self._is_sender or self._is_receiver:
                async with Nursery() as tasks:
                    for rank, names in self._shared_names().items():
                        tasks.create_task(
                            self._send(world, rank, names)
                            if self._is_sender
                            else self._receive(world, rank, names, senders)
                        )
        finally:
            if self._is_sender:
                self._state = HeldState()

    async def load(self) -> None:
        """Load into a node of a late cluster what it received beside the average."""
        if self._is_receiver:
            state, self._state = self._state, HeldState()
            await self._stage.restore(state)

    def _shared_names(self) -> dict[int, set[str]]:
        """The ranks on the other side, with the names of the parameters and buffers that both hold."""
        own_place = self._places[self._rank][1]
        shared_names = dict[int, set[str]]()
        for rank, (place, stage_place) in enumerate(self._places):
            first = max(own_place.first, stage_place.first)
            end = min(own_place.end, stage_place.end)
            if place.cluster in self._other_clusters and first < end:
                shared_names[rank] = {name for layer in self._layers[first:end] for name in layer}
        return shared_names

    async def _send(self, world: Transport, rank: int, names: set[str]) -> None:
        """Send all at once, in order: over a slow line no message waits for the reply to the one before."""
        state = {key: tensor for key, tensor in self._state.items() if key.rpartition("/")[0] in names}
        async with Nursery() as tasks:
            async for key, blocks in _messages_of(state):
                tasks.create_task(world.send(rank, key, *blocks))

    async def _receive(self, world: Transport, rank: int, names: set[str], senders: Senders) -> None:
        tensors = self._stage.tensors
        averaged_keys = {f"{name}/{VALUE}" for name, tensor in tensors.items() if tensor.is_floating_point()}
        sent_specs = {key: spec for key, spec in self._stage.specs.items() if key not in averaged_keys}
        specs = {key: spec for key, spec in sent_specs.items() if key.rpartition("/")[0] in names}
        try:
            state = await _receive_state(partial(world.receive, rank), specs)
        except TransferError as error:
            raise senders.refusal(rank, f"its optimizer's state cannot be taken: {error}") from error
        await senders.check_state(rank, state)
        self._state |= state


async def share_state(
    holder: RankHolder | None, actor: Actor, stage: HeldStage, has_state: bool, sender: str = ""
) -> "asyncio.Task[None] | None":
    """Give the state of this stage to the other node of its place, or get it from there, where one of them lacks it.

    Args:
        holder: this node, beside the other one; None: it is alone in its place.
        actor: the parent of what sends.
        has_state: whether this node has the state.
        sender: the name of the other node.
    Returns: what sends, while this node trains on; None: nothing is sent.
    Raises:
        NoLongerValid: this node has not the state, and the other one is lost or has it neither: the place is lost.
        TransportError: the other one sent no such state, or numbers that are not finite; this node is as it was.
    Cost: one small message each way; where the other node lacks the state, a copy of it until it is sent.
    """
    other_has_state = holder is not None and await _ask_other(holder, actor, has_state)
    if has_state:
        if holder is None or other_has_state is not False:
            return None
        return actor.start(_send(holder, await stage.copy_state()))
    if holder is None or not other_has_state:
        raise NoLongerValid("no node has the state of its stage")
    try:
        state = await _receive_state(holder.receive, stage.specs)
        if not await asyncio.to_thread(are_finite, state.values()):
            raise TransferError("it has numbers that are not finite")
        await stage.restore(state)
    except TransferError as error:
        raise TransportError(f"the state of its stage from {sender} cannot be taken: {error}") from error
    except PeerLost as error:
        raise NoLongerValid(f"the state of its stage was on its way here ({error})") from error
    return None


async def _ask_other(holder: RankHolder, actor: Actor, has_state: bool) -> bool | None:
    """Whether the other node has the state; None: it is lost."""
    sending = actor.start(_tell(holder, has_state))
    try:
        return (await holder.receive(("state", "held"))).note is True
    except PeerLost:
        return None
    finally:
        await sending


async def _tell(holder: RankHolder, has_state: bool) -> None:
    with suppress(PeerLost):
        await holder.send(("state", "held"), note=has_state)


async def _send(holder: RankHolder, state: Mapping[str, torch.Tensor]) -> None:
    """Send a state, a chunk at a time."""
    with suppress(PeerLost):
        async for key, blocks in _messages_of(state):
            await holder.send(key, *blocks)


async def _messages_of(state: Mapping[str, torch.Tensor]) -> AsyncIterator[tuple[Key, tuple[Block, ...]]]:
    """The messages that a state is sent as: its manifest, then its chunks."""
    manifest = await asyncio.to_thread(describe, state, CHUNK)
    yield ("state", "manifest"), (Block.of(manifest.pack()),)
    for index in range(manifest.chunks):
        yield ("state", "chunk", index), chunk_of(state, manifest, index)


async def _receive_state(receive: Callable[[Key], Awaitable[Message]], specs: TensorSpecs) -> HeldState:
    """The state that another node sends.

    Raises:
        TransferError: it sent something else; memory is allocated only for tensors of these specs. Else as
            `Transport.receive`.
    """
    blocks = (await receive(("state", "manifest"))).blocks
    manifest = Manifest.unpack(blocks[0].data if blocks else b"")
    if manifest.specs != specs:
        differences = sorted(dict(manifest.specs).keys() ^ specs.keys()) or "dtypes or shapes"
        raise TransferError(f"it has another layout than this stage (differing: {differences!r:.200})")
    download = Download(manifest)
    for index in [*download.missing]:
        download.add(index, (await receive(("state", "chunk", index))).blocks)
    return {name: block.torch() for name, block in download.finish().items()}
