"""A peer's coding of tensors for the wire. A trainer forwards a coded tensor between two stages without decoding it.

Coding runs beside the device's computing, and beside the event loop if there are threads (not on a virtual clock).
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pipelined.swarm.messaging.fields import Malformed
from transports import Block, WireError, pack, unpack

T = TypeVar("T")
Coded = tuple[tuple[Any, ...], Any]
"""Blocks as they are sent, and the note that describes the coding; None: not coded."""


class Coding:
    """The coding of one process.

    Args:
        codec: of `transports.find_codec`; "": none.
        threads: whether coding runs in threads.
    """

    def __init__(self, codec: str = "", threads: bool = True):
        self.codec, self.threads = codec, threads

    async def pack(self, arrays: Sequence[Any], what: str) -> Coded:
        """Code arrays. Raises WireError: values that the codec cannot carry."""
        if not self.codec:
            return tuple(arrays), None
        packed = await self.in_background(lambda: pack(self.codec, arrays, what))
        return tuple(packed.blocks), packed.note

    async def unpack(self, blocks: Sequence[Block], note: Any, most: int) -> tuple[Block, ...]:
        """Decode blocks into at most this many bytes.

        Raises:
            Malformed: the blocks are not a coded message, or are larger.
        """
        if note is None:
            return tuple(blocks)
        try:
            return await self.in_background(lambda: unpack(blocks, note, most))
        except WireError as error:
            raise Malformed(str(error)) from error

    async def in_background(self, work: Callable[[], T]) -> T:
        """Run slow work in a thread, if there are threads."""
        return await asyncio.to_thread(work) if self.threads else work()
