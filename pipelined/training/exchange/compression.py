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
    """The bytes of the tensors that this rank has sent over one link so far, and the bytes sent after coding."""

    tensor_bytes: int = 0
    sent_bytes: int = 0


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
            for number, chunk in enumerate(cut(whole)):
                packed = await self._coding("send", key, partial(pack, self._codec, [chunk], _chunk_name(key, number)))
                self._count(peer, packed)
                note = chunk_note(whole, number, packed.note)
                sending.create_task(self._actor.transport.send(peer, chunk_key(key, number), *packed.blocks, note=note))

    async def decode(self, first: Message) -> tuple[Block, ...]:
        """The tensor that begins with this message, with the chunks that follow."""
        peer, key = first.source, first.key
        whole, header = allocate_tensor(first.note)
        if whole is None:
            return await self._coding("receive", key, lambda: unpack(first.blocks, header))
        chunks = cut(whole)
        keys = [chunk_key(key, number) for number in range(1, len(chunks))]
        async with Nursery() as receiving:
            requests = [receiving.create_task(self._actor.receive(peer, later_key)) for later_key in keys]
            await self._coding("receive", key, lambda: fill(chunks[0], unpack(first.blocks, header)))
            for request, chunk in zip(requests, chunks[1:], strict=True):
                message = await request
                await self._coding("receive", key, partial(_decode, message, chunk))
        return (whole,)

    def _count(self, peer: int, packed: Packed) -> None:
        link = self.links.setdefault(peer, LinkBytes())
        link.tensor_bytes += packed.original_bytes
        link.sent_bytes += packed.nbytes

    async def _coding(self, category: str, key: Key, work: Callable[[], T]) -> T:
        with self._tracer.span(category, self._codec, **labels_of(key)):
            return await asyncio.to_thread(work)

    async def report(self) -> str | None:
        """The bytes sent over all links so far, as one line of text on rank 0; all ranks call this."""
        own_links = [[peer, link.tensor_bytes, link.sent_bytes] for peer, link in self.links.items()]
        by_rank = await gather_objects(self._actor.transport, "compression", own_links)
        links = [(sent, rank, peer, size) for rank, rank_links in enumerate(by_rank) for peer, size, sent in rank_links]
        if not links:
            return None
        tensor_bytes = sum(link[3] for link in links)
        sent_bytes = sum(link[0] for link in links)
        share = f"{sent_bytes / 2**20:.1f} of {tensor_bytes / 2**20:.1f} MiB"
        most_bytes, rank, peer, _ = max(links)
        busiest = f"the most from rank {rank} to rank {peer}: {most_bytes / 2**20:.1f} MiB"
        return f"{self._codec}: {share} travelled between stages ({sent_bytes / tensor_bytes:.1%}), {busiest}"


def _decode(message: Message, chunk: Block) -> None:
    fill(chunk, unpack(message.blocks, message.note))


def _chunk_name(key: Key, index: int) -> str:
    """The name of a chunk, for error messages."""
    return f"{describe(key)}, from byte {index * CHUNK_BYTES} on" if index else describe(key)


def cut(block: Block) -> list[Block]:
    """Flat views of the chunks of a block, in order; a block up to one chunk is not cut."""
    if block.nbytes <= CHUNK_BYTES:
        return [block]
    item = ArrayType(block.dtype, (1,)).nbytes
    starts = range(0, block.nbytes, CHUNK_BYTES)
    views = (block.data[start : start + CHUNK_BYTES] for start in starts)
    return [Block(block.dtype, (view.nbytes // item,), view) for view in views]


def chunk_key(key: Key, index: int) -> Key:
    """The address of a chunk."""
    return ("chunk", index, *key) if index else key


def chunk_note(block: Block, index: int, header: Any) -> Any:
    """The note of a chunk's message: the codec's header; the first of several chunks adds the layout of the tensor."""
    is_first_of_several = not index and block.nbytes > CHUNK_BYTES
    return [CHUNKED, block.dtype, list(block.shape), header] if is_first_of_several else header


def allocate_tensor(note: Any) -> tuple[Block | None, Any]:
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
