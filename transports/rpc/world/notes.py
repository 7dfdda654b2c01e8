"""The requests between the parties of a world: the note of each, and how it is parsed.

| topic | fields of the note | reply |
|---|---|---|
| `world/open` | world | when the receiver has opened the world, too |
| `world/message` | world, header of the message | when the message is in the mailbox |
| `world/buffer` | world, channel | the same |
| `world/end` | world, rank, reason, departure | at once |

A request that the receiver cannot take is rejected as "malformed", "not a member" (of the world), "restarted" (the
member has another incarnation by now), "closed" (the receiver has left the world) or "aborted" (some rank failed).
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from enum import StrEnum
from typing import Any, ClassVar

from transports.errors import WireError
from transports.rpc.base import Rejected, Request
from transports.state import ABORT_CHARACTERS, CHANNELS
from transports.wire.arrays import ArrayType, Block
from transports.wire.frames import Header, unpack_header


@dataclass(frozen=True, slots=True)
class WorldNote:
    """The fields of every note.

    Args:
        world: the name of the world.
    """

    world: str
    topic: ClassVar[str]

    def pack(self) -> list[Any]:
        """The note on the wire: its fields in order."""
        return list(astuple(self))


@dataclass(frozen=True, slots=True)
class OpenNote(WorldNote):
    """The sender has opened the world."""

    topic = "world/open"

    @classmethod
    def parse(cls, request: Request) -> "OpenNote":
        """Raises Rejected: malformed."""
        return cls(*_fields(request, str))


@dataclass(frozen=True, slots=True)
class MessageNote(WorldNote):
    """An addressed message.

    Args:
        packed: its header, as `pack_header` makes it.
    """

    packed: bytes
    topic = "world/message"

    @classmethod
    def parse(cls, request: Request) -> "MessageNote":
        """Raises Rejected: malformed."""
        return cls(*_fields(request, str, bytes))

    def header(self, blocks: Sequence[Block]) -> Header:
        """The header of a message with these arrays.

        Raises:
            Rejected: the header is malformed, or describes other arrays.
        """
        try:
            header = unpack_header(self.packed)
        except WireError as error:
            raise Rejected("malformed", why=str(error)[:200]) from error
        if list(header.layouts) != [ArrayType(block.dtype, block.shape) for block in blocks]:
            raise Rejected("malformed", why="the arrays are not those of the header")
        return header


@dataclass(frozen=True, slots=True)
class BufferNote(WorldNote):
    """A bare buffer, which is the request's only array."""

    channel: int
    topic = "world/buffer"

    @classmethod
    def parse(cls, request: Request) -> "BufferNote":
        """Raises Rejected: malformed, or no such channel."""
        note = cls(*_fields(request, str, int))
        if not 0 <= note.channel < CHANNELS or len(request.blocks) != 1:
            facts = {"channel": note.channel, "channels": CHANNELS, "arrays": len(request.blocks)}
            raise Rejected("malformed", why="no channel with one array", **facts)
        return note


class Departure(StrEnum):
    """How a holder leaves, and what that means for the others."""

    CLOSED = "closed"  # its program has ended: no holder of its rank needs a message any more
    LOST = "lost"  # it is lost alone
    FAILED = "failed"  # a rank failed: the world ends for all


@dataclass(frozen=True, slots=True)
class EndNote(WorldNote):
    """The sender leaves the world. `rank` is its own, or the one that failed."""

    rank: int
    reason: str
    departure: Departure
    topic = "world/end"

    @classmethod
    def parse(cls, request: Request) -> "EndNote":
        """Raises Rejected: malformed."""
        world, rank, reason, departure = _fields(request, str, int, str, str)
        if departure not in [*Departure]:
            raise Rejected("malformed", why="no such departure", departure=departure[:64])
        return cls(world, rank, reason[:ABORT_CHARACTERS], Departure(departure))


def failed_rank(error: Rejected, sender: int) -> tuple[int, str]:
    """The rank that failed and its reason, from a rejection; if they are malformed, the rejection's sender."""
    rank, why = error.facts.get("rank"), error.facts.get("why")
    return (rank, why) if type(rank) is int and type(why) is str else (sender, str(error))


def _fields(request: Request, *kinds: type) -> list[Any]:
    note = request.note
    if not isinstance(note, list) or [type(field) for field in note] != list(kinds):
        raise Rejected("malformed", why=f"expected {', '.join(kind.__name__ for kind in kinds)} ({request.topic})")
    return note
