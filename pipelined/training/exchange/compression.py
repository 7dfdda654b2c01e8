"""Compression of the tensors that are sent between stages, by a codec.

Threads run the codec at the same time as the device computes and the event loop transfers. A large tensor is sent in
chunks, so that one is coded while another is sent and a third is decoded:

    key                         the first chunk; its note: ["chunks", dtype, shape, the codec's header]
    ("chunk", i, *key)          the i-th of the others, packed like any message

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
from pipelined.errors import UsageError
from pipelined.programs.addresses import describe, labels_of
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
CHUNKED = "chunks"
"""The first word in the note of a tensor's first chunk."""
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
    """The codec of one rank's messages: it codes and decodes one tensor at a time. Args: as of `StageMessages`.

    Attributes:
        links: bytes sent, by peer.
    """

    def __init__(self, actor: Actor, codec: str, tracer: Tracer | NullTracer):
        self._actor, self._codec, self._tracer = actor, codec, tracer
        self.links = dict[int, LinkBytes]()

    async def send(self, peer: int, key: Key, whole: Block) -> None:
        """Code a tensor and send it; return when its memory may be reused. Raises: as `StageMessages.send`."""
        async with Nursery() as sending:
            for place, chunk in enumerate(cut(whole)):
                packed = await self._coding("send", key, partial(pack, self._codec, [chunk], _name(key, place)))
                self._count(peer, packed)
                note = note_of(whole, place, packed.note)
                sending.create_task(self._actor.transport.send(peer, key_of(key, place), *packed.blocks, note=note))

    async def decoded(self, first: Message) -> tuple[Block, ...]:
        """The tensor that begins with this message, with the chunks that follow."""
        peer, key = first.source, first.key
        whole, header = opened(first.note)
        if whole is None:
            return await self._coding("receive", key, lambda: unpack(first.blocks, header))
        chunks = cut(whole)
        keys = [key_of(key, place) for place in range(1, len(chunks))]
        async with Nursery() as coming:
            requests = [coming.create_task(self._actor.receive(peer, chunk_key)) for chunk_key in keys]
            await self._coding("receive", key, lambda: fill(chunks[0], unpack(first.blocks, header)))
            for request, chunk in zip(requests, chunks[1:], strict=True):
                message = await request
                await self._coding("receive", key, partial(_decode, message, chunk))
        return (whole,)

    def _count(self, peer: int, packed: Packed) -> None:
        link = self.links.setdefault(peer, LinkBytes())
        link.true += packed.original_bytes
        link.sent += packed.nbytes

    async def _coding(self, category: str, key: Key, work: Callable[[], T]) -> T:
        with self._tracer.span(category, self._codec, **labels_of(key)):
            return await asyncio.to_thread(work)

    async def report(self) -> str | None:
        """The bytes sent over all links so far, as one line of text on rank 0; all ranks call this."""
        mine = [[peer, link.true, link.sent] for peer, link in self.links.items()]
        everyone = await gather_objects(self._actor.transport, "compression", mine)
        links = [(sent, rank, peer, true) for rank, sent_by in enumerate(everyone) for peer, true, sent in sent_by]
        if not links:
            return None
        true = sum(link[3] for link in links)
        sent = sum(link[0] for link in links)
        most, rank, peer, _ = max(links)
        travelled = f"{sent / 2**20:.1f} of {true / 2**20:.1f} MiB travelled between stages ({sent / true:.1%})"
        return f"{self._codec}: {travelled}, the most from rank {rank} to rank {peer}: {most / 2**20:.1f} MiB"


def _decode(message: Message, chunk: Block) -> None:
    fill(chunk, unpack(message.blocks, message.note))


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
    return [CHUNKED, block.dtype, list(block.shape), header] if many else header


def opened(note: Any) -> tuple[Block | None, Any]:
    """Allocate the tensor that begins with this message (None: the message is the whole); and the codec's header.

    Raises:
        WireError: the layout is invalid, has more bytes than a packed message may have, or fits into one chunk.
    """
    match note:
        case [str(kind), dtype, shape, header] if kind == CHUNKED:
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
