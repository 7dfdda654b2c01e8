"""A writer behind a slow link, for rehearsing a slow network on one machine. The one rule: only time is added.

What is written is copied and on its way at once; its frame counts as written when the last byte has left, so that what
is said in turns takes its turns on the link and not in front of it.
"""

import asyncio
from collections.abc import Sequence
from functools import partial

from transports.emulation.delay_line import Way
from transports.emulation.link import SlowLink
from transports.rpc.scheduler import Writer
from transports.tcp.writer import LONG_BYTES, Outgoing


class SlowWriter:
    """See the module.

    Args:
        writer: gets every frame when it arrives.
    """

    def __init__(self, writer: Writer, link: SlowLink):
        self._writer, self._way = writer, Way(link)
        self._loop = asyncio.get_running_loop()

    def write(self, views: Sequence[bytes | memoryview]) -> Outgoing:
        copy = b"".join(views)
        frame = Outgoing((), LONG_BYTES)
        self._loop.call_at(self._way.send(len(copy), partial(self._arrive, copy)), frame.settle)
        return frame

    def withdraw(self, frame: Outgoing) -> bool:
        """What is under way arrives, from memory of its own."""
        return False

    def close(self) -> None:
        self._way.close()

    def _arrive(self, frame: bytes) -> None:
        self._writer.write([frame])
