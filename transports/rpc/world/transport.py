"""The transport between endpoints: one rank of a world."""

from collections.abc import Sequence
from typing import Any

from transports.base import Message, Transport
from transports.errors import SizeMismatch
from transports.inboxes import fit_or_put_back
from transports.mailbox import Arrival
from transports.rpc.world.notes import BufferNote, MessageNote
from transports.rpc.world.world import World
from transports.rpc.world.world_state import Blocks
from transports.wire.arrays import Block, as_targets, copied, fill, writable_bytes
from transports.wire.frames import Header, Key, pack_header, unpack_header


class RpcTransport(Transport):
    """One rank of a world that `Worlds.open` opened. `close` leaves the endpoint open."""

    def __init__(self, world: World):
        super().__init__(world.rank, world.world_size)
        self._world = world
        inboxes = world.state.inboxes
        self._state, self._messages, self._buffers = inboxes.state, inboxes.messages, inboxes.buffers

    def __repr__(self) -> str:
        return f"<RpcTransport {self._world.name}, rank {self.rank} of {self.world_size}>"

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(range(self.world_size))

    async def send(self, peer: int, key: Key, *arrays: Any, note: Any = None) -> None:
        self._state.check(peer)
        blocks = tuple(Block.of(array) for array in arrays)
        packed = pack_header(key, blocks, note)
        if peer == self.rank:
            self._messages.put(peer, key, (unpack_header(packed), copied(blocks)))
        else:
            await self._world.send(peer, MessageNote(self._world.name, packed), blocks)
        self.traffic.count_sent(peer, sum(block.nbytes for block in blocks))

    async def receive(self, peer: int | None, key: Key, into: Sequence[Any] | None = None) -> Message:
        self._state.check(peer)
        targets = as_targets(into)
        arrival = await self._messages.take(peer, key)
        header, blocks = arrival.item
        if targets is not None:
            targets = fit_or_put_back(self._messages, arrival, header.layouts, targets)
            fill(targets, blocks)
        return self._received(arrival, blocks if targets is None else targets)

    def _received(self, arrival: Arrival[tuple[Header, Blocks]], blocks: Blocks) -> Message:
        """Count a message. Returns it with these blocks."""
        header = arrival.item[0]
        self.traffic.count_received(sum(block.nbytes for block in blocks))
        return Message(arrival.peer, header.key, blocks, header.note)

    def probe(self, peer: int | None, key: Key) -> bool:
        return self._messages.probe(peer, key)

    async def send_buffer(self, peer: int, channel: int, buffer: memoryview) -> None:
        self._state.check(peer, channel)
        block = Block.bare(buffer)
        if peer == self.rank:
            self._buffers.put(peer, (channel,), copied([block])[0])
        else:
            await self._world.send(peer, BufferNote(self._world.name, channel), (block,))
        self.traffic.count_sent(peer, block.nbytes)

    async def receive_buffer(self, peer: int, channel: int, buffer: memoryview) -> None:
        self._state.check(peer, channel)
        block = Block.bare(writable_bytes(buffer))
        arrived = (await self._buffers.take(peer, (channel,))).item
        if arrived.nbytes != block.nbytes:
            raise SizeMismatch(peer, channel, block.nbytes, arrived.nbytes, arrived.data[: block.nbytes])
        fill([block], [arrived])
        self.traffic.count_received(block.nbytes)

    @property
    def activity(self) -> int:
        return self._world.activity

    def last_key(self, peer: int) -> Key | None:
        return self._messages.last_key(peer)

    async def abort(self, reason: str) -> None:
        await self._world.abort(reason)

    async def close(self) -> None:
        await self._world.close()


class RankHolder:
    """An endpoint as a holder of its rank, beside another one where the rank has two (see `holders`).

    This class is separate from the transport, because a transport around another offers only the contract's methods.
    """

    def __init__(self, transport: RpcTransport):
        self._transport, self._world = transport, transport._world

    @property
    def has_twin(self) -> bool:
        """Whether another endpoint holds this rank, too, and is not lost."""
        return self._world.holders.twin is not None

    @property
    def is_backup(self) -> bool:
        """Whether this endpoint is the second holder of its rank."""
        return self._world.holders.own_seat >= self._transport.world_size

    async def send(self, key: Key, *arrays: Any, note: Any = None) -> None:
        """Send a message to the other holder; nothing if it is lost. Raises: as `Transport.send`."""
        blocks = tuple(Block.of(array) for array in arrays)
        await self._world.send_twin(MessageNote(self._world.name, pack_header(key, blocks, note)), blocks)

    async def receive(self, key: Key) -> Message:
        """Receive a message of the other holder.

        Raises:
            ValueError: this rank has no other holder, and never had one. Else as `Transport.receive`.
        """
        if self._world.holders.ranks.count(rank := self._transport.rank) == 1:
            raise ValueError(f"rank {rank} has one holder, so no other one sends to it; name a backup for it")
        arrival = await self._world.state.from_twin.take(rank, key)
        return self._transport._received(arrival, arrival.item[1])
