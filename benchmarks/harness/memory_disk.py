"""The disk of a simulated machine, for the journal of its directory."""

from collections.abc import Callable
from typing import Any

from pipelined.membership.directory.server.disk import Disk


class MemoryDisk(Disk):
    """The disk of a simulated machine; its data outlives the simulated process that writes to it.

    Args:
        pause: waits as long as a write takes, for example `lambda: clock.sleep(2e-3)`. A writer that is cancelled
            meanwhile has written nothing.
    Attributes:
        data: the content.
    """

    def __init__(self, pause: Callable[[], Any] | None = None):
        self.data, self._pause = b"", pause

    async def load(self) -> bytes:
        return self.data

    async def append(self, data: bytes) -> None:
        await self._write(self.data + data)

    async def truncate(self, size: int) -> None:
        await self._write(self.data[:size])

    async def replace(self, make: Callable[[], bytes]) -> int:
        await self._write(make())
        return len(self.data)

    async def close(self) -> None:
        pass

    async def _write(self, data: bytes) -> None:
        if self._pause is not None:
            await self._pause()
        self.data = data
