"""How stages' tensors travel between ranks: through a codec, or as they are.

The one rule: every message between two stages goes through here, those too that a rank sends to itself, so that what a
lossy codec does to the numbers depends on where the model is cut and never on who holds what. Coding runs in threads,
beside the device's computing and the event loop's transfers, a large tensor's own with them: it goes in chunks (see
`pipelined.training.chunks`). It knows addresses and bytes; it must not know stages.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from pipelined.actors.actor import Actor, Key
from pipelined.actors.agree import gather
from pipelined.actors.messages import describe, place_of
from pipelined.aio.nursery import Nursery
from pipelined.traces.tracer import NullTracer, Tracer
from pipelined.training.chunks import CHUNK_BYTES, cut, fill, key_of, note_of, opened
from transports import Block, Frame, Packed, WireError, pack, unpack

NONE = "none"
"""The name of no codec."""
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

    async def receive(self, peer: int, key: Key) -> Frame:
        """Take the message with this address, waiting for it if need be, and give it as it was before the codec.

        Raises:
            WireError: it is no packed message; peer and address are named. Else as `Transport.receive`.
        """
        frame = await self._actor.receive(peer, key)
        if self.codec == NONE:
            return frame
        try:
            return Frame(frame.source, frame.key, await self._decoded(peer, key, frame))
        except WireError as error:
            raise WireError(f"{describe(key)} from rank {peer}: {error}") from error

    async def _decoded(self, peer: int, key: Key, first: Frame) -> tuple[Block, ...]:
        whole, header = opened(first.note)
        if whole is None:
            return await self._coding("receive", key, lambda: unpack(first.blocks, header))
        chunk, *others = cut(whole)
        async with Nursery() as coming:
            asked = [coming.create_task(self._actor.receive(peer, key_of(key, n + 1))) for n in range(len(others))]
            await self._coding("receive", key, lambda: fill(chunk, unpack(first.blocks, header)))
            for frame, other in zip(asked, others, strict=True):
                await self._coding("receive", key, partial(_decode, await frame, other))
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


def _decode(frame: Frame, chunk: Block) -> None:
    fill(chunk, unpack(frame.blocks, frame.note))


def _name(key: Key, place: int) -> str:
    """A chunk in words, for error messages."""
    return f"{describe(key)}, from byte {place * CHUNK_BYTES} on" if place else describe(key)
