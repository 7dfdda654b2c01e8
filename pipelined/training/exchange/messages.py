"""The messages between stages of one rank, with a codec or without.

Every message between two stages goes through here, also a message that a rank sends to itself. So the loss of a lossy
codec depends on where the model is cut, and not on which rank holds which stage.

Without a codec a message has its tensors as they are. With one a single tensor is coded. If there are several, those in
floating point are coded and sent each by itself:

    key                         the other tensors; its note: ["several", the positions of the coded ones, the note]
    ("tensor", i, *key)         the tensor at position i
"""

from collections.abc import Sequence
from typing import Any

from pipelined.actors.actor import Actor
from pipelined.programs.addresses import describe
from pipelined.traces.tracer import NullTracer, Tracer
from pipelined.training.exchange.compression import NONE, Compression
from transports import Block, Key, Message, Nursery, WireError

SEVERAL, TENSOR = "several", "tensor"


class StageMessages:
    """Sends tensors of one rank to other stages, and receives them.

    Args:
        actor: the rank's mailbox.
        codec: a name for `transports.find_codec`, or "none".
        tracer: records the coding, as part of the send or receive.

    Attributes:
        compression: None without a codec.
    """

    def __init__(self, actor: Actor, codec: str = NONE, tracer: Tracer | NullTracer | None = None):
        self._actor = actor
        self.compression = None if codec == NONE else Compression(actor, codec, tracer or NullTracer())

    async def send(self, peer: int, key: Key, *tensors: Any, note: Any = None) -> None:
        """Send tensors; return when their memory may be reused.

        Args:
            note: describes several tensors; None for one.
        Raises:
            WireError: values that the codec cannot code; the address is named. Else as `Transport.send`.
        """
        blocks = [Block.of(tensor) for tensor in tensors]
        if self.compression is None:
            await self._actor.transport.send(peer, key, *blocks, note=note)
        elif note is None:
            await self.compression.send(peer, key, blocks[0])
        else:
            coded = {position: block for position, block in enumerate(blocks) if "float" in block.dtype}
            plain = [block for position, block in enumerate(blocks) if position not in coded]
            async with Nursery() as sending:
                note = [SEVERAL, list(coded), note]
                sending.create_task(self._actor.transport.send(peer, key, *plain, note=note))
                for position, block in coded.items():
                    sending.create_task(self.compression.send(peer, tensor_key(key, position), block))

    async def receive(self, peer: int, key: Key) -> Message:
        """Take the message with this address, waiting for it if necessary, and decode it.

        Raises:
            WireError: it is not a packed message; peer and address are named. Else as `Transport.receive`.
        """
        message = await self._actor.receive(peer, key)
        if self.compression is None:
            return message
        try:
            match message.note:
                case [str(kind), list(coded), note] if kind == SEVERAL:
                    blocks = await self._collect(self.compression, message, coded)
                case note:
                    blocks = await self.compression.decode(message)
                    note = None
            return Message(message.source, message.key, blocks, note)
        except WireError as error:
            raise WireError(f"{describe(key)} from rank {peer}: {error}") from error

    async def report(self) -> str | None:
        """The bytes sent over all links so far, as one line of text on rank 0; all ranks call this."""
        return None if self.compression is None else await self.compression.report()

    async def _collect(self, compression: Compression, message: Message, coded: Sequence[int]) -> tuple[Block, ...]:
        """All tensors of a message, in order, with those that were coded by themselves."""

        async def receive_tensor(position: int) -> Block:
            first = await self._actor.receive(message.source, tensor_key(message.key, position))
            return (await compression.decode(first))[0]

        async with Nursery() as receiving:
            tasks = {position: receiving.create_task(receive_tensor(position)) for position in coded}
        blocks = iter(message.blocks)
        count = len(message.blocks) + len(tasks)
        received = [tasks[position].result() if position in tasks else next(blocks, None) for position in range(count)]
        if None in received or len(tasks) != len(coded):
            fact = f"positions of other tensors (positions: {coded}, tensors: {count})"
            raise WireError(f"{fact}; install one release everywhere")
        return tuple(block for block in received if block is not None)


def tensor_key(key: Key, position: int) -> Key:
    """The address of one of several tensors."""
    return (TENSOR, position, *key)
