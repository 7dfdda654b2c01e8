"""Tensors through a codec at a peer: what a trainer carries between two stages it carries as it is, still coded.

Coding runs beside the device's computing, and beside the event loop where there are threads (not on a virtual clock).
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from transports import Block, WireError, pack, unpack
from transports.rpc import Rejected

T = TypeVar("T")
Coded = tuple[tuple[Any, ...], Any]
"""Blocks as they travel, and the note that says what they were; None where they travel as they are."""


class Coding:
    """One process's way of coding.

    Args:
        codec: of `transports.find_codec`; "": none.
        threads: whether there are any.
    """

    def __init__(self, codec: str = "", threads: bool = True):
        self.codec, self.threads = codec, threads

    async def pack(self, arrays: Sequence[Any], what: str) -> Coded:
        """Code arrays. Raises WireError: values that the codec cannot carry."""
        if not self.codec:
            return tuple(arrays), None
        packed = await self.beside(lambda: pack(self.codec, arrays, what))
        return tuple(packed.blocks), packed.note

    async def unpack(self, blocks: Sequence[Block], note: Any, most: int) -> tuple[Block, ...]:
        """What was coded, at most so many bytes of it.

        Raises:
            Rejected: it is no coded message, or more.
        """
        if note is None:
            return tuple(blocks)
        try:
            return await self.beside(lambda: unpack(blocks, note, most))
        except WireError as error:
            raise Rejected("malformed", why=str(error)) from error

    async def beside(self, work: Callable[[], T]) -> T:
        """Do what takes a while, beside everything else where it can be."""
        return await asyncio.to_thread(work) if self.threads else work()
