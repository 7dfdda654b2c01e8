"""Compression of the tensors that are sent between stages: with a codec, or unchanged.

Every message between two stages goes through here, also a message that a rank sends to itself. So the loss of a lossy
codec depends on where the model is cut, and not on which rank holds which stage. Threads run the codec at the same time
as the device computes and the event loop transfers.

A large tensor is sent in chunks, so that one is coded while another is sent and a third is decoded:

    key                         the first chunk; its note: ["chunks", dtype, shape, the codec's header]
    ("chunk", i, *key)          the i-th of the others, packed like any message

Of several tensors those in floating point are coded and sent each by itself, as above:

    key                         the other tensors; its note: ["several", the places of the coded ones, the note]
    ("tensor", i, *key)         the tensor at place i

Both ends compute the same cut from dtype and shape; the receiver checks both before it allocates memory. A chunk is a
multiple of every codec's block where that is a power of two, so cutting changes no value.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from collectives.objects import gather_objects
from pipelined.actors.actor import Actor
from pipelined.actors.messages import describe, labels_of
from pipelined.errors import UsageError
from pipelined.traces.tracer import NullTracer, Tracer
from transports import (
    MAX_PACKED_BYTES,
    ArrayType,
    Block,
    Key,
    Message,
    Nursery,
    Packed,
    WireError,
    find_codec,
    pack,
    parse_layout,
    unpack,
)

NONE = "none"
"""The name for no codec."""
CHUNK_BYTES = 1 << 20
"""Bytes of the uncoded tensor per chunk: coding takes longer than a message costs, and a chunk fits a core's cache."""
CHUNKS, SEVERAL, TENSOR = "chunks", "several", "tensor"
T = TypeVar("T")


@dataclass
class LinkBytes:
    """The bytes that the stages of this rank have sent over one link so far.

    Args:
        true: bytes of the tensors.
        sent: bytes sent after coding.
    """

    true: int = 0
    sent: int = 0


def check_codec(name: str, argument: str) -> None:
    """Refuse an unknown codec.

    Args:
        argument: the setting or flag that names it, for the message.
    Raises:
        UsageError: the message lists the known codecs.
    """
    if name == NONE:
        return
    try:
        find_codec(name)
    except ValueError as error:
        raise UsageError(f"{argument}: {error}; or none") from error


class Compression:
    """Sends tensors of one rank to other stages, and receives them.

    Args:
        actor: the rank's mailbox.
        codec: a name for `transports.find_codec`, or "none".
        tracer: records the coding, as part of the send or receive.

    Attributes:
        links: bytes sent, by peer; empty without a codec, where the transport's own counts are enough.
    """

    def __init__(self, actor: Actor, codec: str = NONE, tracer: Tracer | NullTracer | None = None):
        self.codec, self.links = codec, dict[int, LinkBytes]()
        self._actor, self._tracer = actor, tracer or NullTracer()

    async def send(self, peer: int, key: Key, *tensors: Any, note: Any = None) -> None:
        """Send tensors; return when their memory may be reused.

        Args:
            note: describes several tensors; None for one. With a codec each floating-point one is coded by itself.
        Raises:
            WireError: values that the codec cannot code; the address is named. Else as `Transport.send`.
        """
        blocks = [Block.of(tensor) for tensor in tensors]
        if self.codec == NONE:
            await self._actor.transport.send(peer, key, *blocks, note=note)
        elif note is None:
            await self._send_coded(peer, key, blocks[0])
        else:
            coded = [place for place, block in enumerate(blocks) if is_coded(block)]
            plain = [block for block in blocks if not is_coded(block)]
            async with Nursery() as sending:
                note = [SEVERAL, coded, note]
                sending.create_task(self._actor.transport.send(peer, key, *plain, note=note))
                for place in coded:
                    sending.create_task(self._send_coded(peer, tensor_key(key, place), blocks[place]))

    async def receive(self, peer: int, key: Key) -> Message:
        """Take the message with this address, waiting for it if necessary, and decode it.

        Raises:
            WireError: it is not a packed message; peer and address are named. Else as `Transport.receive`.
        """
        message = await self._actor.receive(peer, key)
        if self.codec == NONE:
            return message
        try:
            match message.note:
                case [str(kind), list(coded), note] if kind == SEVERAL:
                    blocks = await self._several(peer, key, message.blocks, coded)
                    return Message(message.source, message.key, blocks, note)
            return Message(message.source, message.key, await self._decoded(peer, key, message))
        except WireError as error:
            raise WireError(f"{describe(key)} from rank {peer}: {error}") from error

    async def _send_coded(self, peer: int, key: Key, whole: Block) -> None:
        async with Nursery() as sending:
            for place, chunk in enumerate(cut(whole)):
                packed = await self._coding("send", key, partial(pack, self.codec, [chunk], _name(key, place)))
                self._count(peer, packed)
                note = note_of(whole, place, packed.note)
                sending.create_task(self._actor.transport.send(peer, key_of(key, place), *packed.blocks, note=note))

    async def _several(self, peer: int, key: Key, plain: Sequence[Block], coded: Sequence[int]) -> tuple[Block, ...]:
        """All tensors of a message, in order, with those that were coded by themselves."""

        async def one(place: int) -> tuple[Block, ...]:
            part = tensor_key(key, place)
            return await self._decoded(peer, part, await self._actor.receive(peer, part))

        async with Nursery() as coming:
            tasks = {place: coming.create_task(one(place)) for place in coded}
        blocks, count = iter(plain), len(plain) + len(tasks)
        received = [tasks[place].result()[0] if place in tasks else next(blocks, None) for place in range(count)]
        if None in received or len(tasks) != len(coded):
            raise WireError(
                f"places of other tensors (places: {coded}, tensors: {count}); install one release everywhere"
            )
        return tuple(block for block in received if block is not None)

    async def _decoded(self, peer: int, key: Key, first: Message) -> tuple[Block, ...]:
        whole, header = opened(first.note)
        if whole is None:
            return await self._coding("receive", key, lambda: unpack(first.blocks, header))
        chunk, *others = cut(whole)
        async with Nursery() as coming:
            requests = [coming.create_task(self._actor.receive(peer, key_of(key, n + 1))) for n in range(len(others))]
            await self._coding("receive", key, lambda: fill(chunk, unpack(first.blocks, header)))
            for message, other in zip(requests, others, strict=True):
                await self._coding("receive", key, partial(_decode, await message, other))
        return (whole,)

    def _count(self, peer: int, packed: Packed) -> None:
        link = self.links.setdefault(peer, LinkBytes())
        link.true += packed.original_bytes
        link.sent += packed.nbytes

    async def _coding(self, category: str, key: Key, work: Callable[[], T]) -> T:
        with self._tracer.span(category, self.codec, **labels_of(key)):
            return await asyncio.to_thread(work)

    async def report(self) -> str | None:
        """The bytes sent over all links so far, as one line of text on rank 0; all ranks call this."""
        mine = [[peer, link.true, link.sent] for peer, link in self.links.items()]
        everyone = await gather_objects(self._actor.transport, "compression", mine)
        links = [(sent, rank, peer, true) for rank, sent_by in enumerate(everyone) for peer, true, sent in sent_by]
        if not links:
            return None
        true, sent = sum(link[3] for link in links), sum(link[0] for link in links)
        most, rank, peer, _ = max(links)
        travelled = f"{sent / 2**20:.1f} of {true / 2**20:.1f} MiB travelled between stages ({sent / true:.1%})"
        return f"{self.codec}: {travelled}, the most from rank {rank} to rank {peer}: {most / 2**20:.1f} MiB"


def _decode(message: Message, chunk: Block) -> None:
    fill(chunk, unpack(message.blocks, message.note))


def is_coded(block: Block) -> bool:
    """Whether a codec takes a tensor among several: those in floating point."""
    return "float" in block.dtype


def tensor_key(key: Key, place: int) -> Key:
    """The address of one of several tensors."""
    return (TENSOR, place, *key)


def _name(key: Key, place: int) -> str:
    """The name of a chunk, for error messages."""
    return f"{describe(key)}, from byte {place * CHUNK_BYTES} on" if place else describe(key)


def cut(block: Block) -> list[Block]:
    """Flat views of the chunks of a block, in order; a block up to one chunk is not cut."""
    if block.nbytes <= CHUNK_BYTES:
        return [block]
    item = ArrayType(block.dtype, (1,)).nbytes
    starts = range(0, block.nbytes, CHUNK_BYTES)
    views = (block.data[start : start + CHUNK_BYTES] for start in starts)
    return [Block(block.dtype, (view.nbytes // item,), view) for view in views]


def key_of(key: Key, place: int) -> Key:
    """The address of a chunk."""
    return ("chunk", place, *key) if place else key


def note_of(block: Block, place: int, header: Any) -> Any:
    """The note of a chunk's message: the codec's header; the first of several chunks adds the layout of the tensor."""
    many = not place and block.nbytes > CHUNK_BYTES
    return [CHUNKS, block.dtype, list(block.shape), header] if many else header


def opened(note: Any) -> tuple[Block | None, Any]:
    """Allocate the tensor that begins with this message (None: the message is the whole); and the codec's header.

    Raises:
        WireError: the layout is invalid, has more bytes than a packed message may have, or fits into one chunk.
    """
    match note:
        case [str(kind), dtype, shape, header] if kind == CHUNKS:
            layout = parse_layout([dtype, shape])
        case _:
            return None, note
    if not CHUNK_BYTES < layout.nbytes <= MAX_PACKED_BYTES:
        limits = f"bytes: {layout.nbytes}, from {CHUNK_BYTES + 1} to {MAX_PACKED_BYTES}"
        raise WireError(f"a tensor in chunks that would not be cut so ({limits}); install one release on every rank")
    return Block.empty(layout.dtype, layout.shape), header


def fill(chunk: Block, decoded: Sequence[Block]) -> None:
    """Copy decoded blocks into their chunk of the tensor.

    Raises:
        WireError: they do not fit this chunk.
    """
    arrays = [(block.dtype, block.shape) for block in decoded]
    if arrays != [(chunk.dtype, chunk.shape)]:
        raise WireError(f"another chunk than was due (due: {chunk.dtype} {chunk.shape}, came: {arrays})")
    chunk.data[:] = decoded[0].data
