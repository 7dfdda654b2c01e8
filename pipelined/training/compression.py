"""Compression of the tensors that travel between stages: through a codec, or as they are.

Every message between two stages goes through here, also one that a rank sends to itself, so that the loss of a lossy
codec depends on where the model is cut and never on which rank holds which stage. Threads do the coding, beside the
device's computing and the event loop's transfers.

A large tensor travels in chunks, so that one is coded while the next is sent and a third is decoded:

    key                         the first chunk; its note: ["chunks", dtype, shape, the codec's header]
    ("chunk", i, *key)          the i-th of the others, packed as any message

Both ends cut alike by dtype and shape alone; the receiver checks both before it allocates memory. A chunk is a whole
number of the codecs' own blocks wherever those are powers of two, so cutting changes no number.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from pipelined.actors.actor import Actor
from pipelined.actors.agree import gather
from pipelined.actors.messages import describe, place_of
from pipelined.aio.nursery import Nursery
from pipelined.traces.tracer import NullTracer, Tracer
from transports import MOST_BYTES, Block, Key, Layout, Message, Packed, WireError, pack, parse_layout, unpack

NONE = "none"
"""The name of no codec."""
CHUNK_BYTES = 1 << 20
"""Bytes of the plain tensor in a chunk: coding them takes longer than a message costs, and they fit a core's cache."""
CHUNKS = "chunks"
T = TypeVar("T")


@dataclass
class LinkBytes:
    """What stages sent over one link so far.

    Args:
        true: bytes of the tensors.
        sent: bytes that travelled.
    """

    true: int = 0
    sent: int = 0


class Compression:
    """One rank's way of sending tensors to other stages and receiving them.

    Args:
        actor: the rank's mailbox.
        codec: a name that `transports.find_codec` knows, or none.
        tracer: takes down the coding, as a part of the send or the receive.

    Attributes:
        links: what was sent, by peer; empty without a codec, where the transport's own counts say it all.
    """

    def __init__(self, actor: Actor, codec: str = NONE, tracer: Tracer | NullTracer | None = None):
        self.codec, self.links = codec, dict[int, LinkBytes]()
        self._actor, self._tracer = actor, tracer or NullTracer()

    async def send(self, peer: int, key: Key, tensor: Any) -> None:
        """Send one tensor; return when its memory may be reused.

        Raises:
            WireError: values that the codec cannot carry; the address is named. Else as `Transport.send`.
        """
        if self.codec == NONE:
            await self._actor.transport.send(peer, key, tensor)
            return
        whole = Block.of(tensor)
        async with Nursery() as sending:
            for place, chunk in enumerate(cut(whole)):
                packed = await self._coding("send", key, partial(pack, self.codec, [chunk], _name(key, place)))
                self._count(peer, packed)
                note = note_of(whole, place, packed.note)
                sending.create_task(self._actor.transport.send(peer, key_of(key, place), *packed.blocks, note=note))

    async def receive(self, peer: int, key: Key) -> Message:
        """Take the message with this address, waiting for it if need be, and give it as it was before the codec.

        Raises:
            WireError: it is no packed message; peer and address are named. Else as `Transport.receive`.
        """
        message = await self._actor.receive(peer, key)
        if self.codec == NONE:
            return message
        try:
            return Message(message.source, message.key, await self._decoded(peer, key, message))
        except WireError as error:
            raise WireError(f"{describe(key)} from rank {peer}: {error}") from error

    async def _decoded(self, peer: int, key: Key, first: Message) -> tuple[Block, ...]:
        whole, header = opened(first.note)
        if whole is None:
            return await self._coding("receive", key, lambda: unpack(first.blocks, header))
        chunk, *others = cut(whole)
        async with Nursery() as coming:
            asked = [coming.create_task(self._actor.receive(peer, key_of(key, n + 1))) for n in range(len(others))]
            await self._coding("receive", key, lambda: fill(chunk, unpack(first.blocks, header)))
            for message, other in zip(asked, others, strict=True):
                await self._coding("receive", key, partial(_decode, await message, other))
        return (whole,)

    def _count(self, peer: int, packed: Packed) -> None:
        link = self.links.setdefault(peer, LinkBytes())
        link.true += packed.true_bytes
        link.sent += packed.nbytes

    async def _coding(self, category: str, key: Key, work: Callable[[], T]) -> T:
        with self._tracer.span(category, self.codec, **place_of(key)):
            return await asyncio.to_thread(work)

    async def tell(self) -> str | None:
        """What travelled over all links so far, in a line; all ranks call this, and rank 0 gets the answer."""
        mine = [[peer, link.true, link.sent] for peer, link in self.links.items()]
        everyone = await gather(self._actor.transport, "compression", mine)
        links = [(sent, rank, peer, true) for rank, told in enumerate(everyone) for peer, true, sent in told]
        if not links:
            return None
        true, sent = sum(link[3] for link in links), sum(link[0] for link in links)
        most, rank, peer, _ = max(links)
        travelled = f"{sent / 2**20:.1f} of {true / 2**20:.1f} MiB travelled between stages ({sent / true:.1%})"
        return f"{self.codec}: {travelled}, the most from rank {rank} to rank {peer}: {most / 2**20:.1f} MiB"


def _decode(message: Message, chunk: Block) -> None:
    fill(chunk, unpack(message.blocks, message.note))


def _name(key: Key, place: int) -> str:
    """A chunk in words, for error messages."""
    return f"{describe(key)}, from byte {place * CHUNK_BYTES} on" if place else describe(key)


def cut(block: Block) -> list[Block]:
    """Flat views of a block that has more than a chunk, in order; else the block itself."""
    if block.nbytes <= CHUNK_BYTES:
        return [block]
    item = Layout(block.dtype, (1,)).nbytes
    starts = range(0, block.nbytes, CHUNK_BYTES)
    views = (block.data[start : start + CHUNK_BYTES] for start in starts)
    return [Block(block.dtype, (view.nbytes // item,), view) for view in views]


def key_of(key: Key, place: int) -> Key:
    """The address of a chunk."""
    return ("chunk", place, *key) if place else key


def note_of(block: Block, place: int, header: Any) -> Any:
    """What a chunk's message says: the codec's header, and with the first of many the whole's layout."""
    many = not place and block.nbytes > CHUNK_BYTES
    return [CHUNKS, block.dtype, list(block.shape), header] if many else header


def opened(note: Any) -> tuple[Block | None, Any]:
    """The memory of the tensor that this message begins, or None where it is all of it; and the codec's header.

    Raises:
        WireError: the layout is none, of more bytes than a packed message may have, or of no more than a chunk.
    """
    match note:
        case [str(kind), dtype, shape, header] if kind == CHUNKS:
            layout = parse_layout([dtype, shape])
        case _:
            return None, note
    if not CHUNK_BYTES < layout.nbytes <= MOST_BYTES:
        limits = f"bytes: {layout.nbytes}, from {CHUNK_BYTES + 1} to {MOST_BYTES}"
        raise WireError(f"a tensor in chunks that would not be cut so ({limits}); install one release on every rank")
    return Block.empty(layout.dtype, layout.shape), header


def fill(chunk: Block, decoded: Sequence[Block]) -> None:
    """Put what was decoded where it belongs.

    Raises:
        WireError: it is no such chunk.
    """
    found = [(block.dtype, block.shape) for block in decoded]
    if found != [(chunk.dtype, chunk.shape)]:
        raise WireError(f"another chunk than was due (due: {chunk.dtype} {chunk.shape}, came: {found})")
    chunk.data[:] = decoded[0].data
