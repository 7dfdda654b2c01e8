"""The worlds of one node in a generation: that of its cluster, and that of all clusters."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from pipelined.ravnest.averaging.round_decisions import RoundDecisions
from pipelined.ravnest.records.generation import Generation
from transports import Nursery, Transport
from transports.rpc.world import abort_reason

OpeningWorld = asyncio.Task[Transport | None]
"""Opens the world of all clusters while one of them trains: to None where the generation ends first."""


class WorldOpener(Protocol):
    """Opens the worlds of one node: over its endpoint (`transports.rpc.world.Worlds`), or in this process."""

    async def open(self, name: str, addresses: Sequence[str], backups: Sequence[str] = ()) -> Transport:
        """A rank of a world; see `Worlds.open`."""

    def lose(self, addresses: Iterable[str]) -> None:
        """See `Worlds.lose`."""


@dataclass(frozen=True)
class GenerationWorlds:
    """The worlds of one node in one generation; each is aborted where its block fails, so that no other rank waits.

    Args:
        worlds: of this node.
        closing_tasks: the parent of the tasks that close the worlds while the node goes on; None: they are closed
            before the block ends. Closing may take long: its messages wait behind the bytes of a round that failed.
    """

    worlds: WorldOpener
    generation: Generation
    decisions: RoundDecisions
    closing_tasks: Nursery | None = None

    @asynccontextmanager
    async def opened(self, cluster: int) -> AsyncIterator[tuple[Transport, OpeningWorld | None]]:
        """The world of one cluster, and the one of all clusters; None: there is one cluster."""
        world = await self._open(cluster)
        try:
            async with self._opened_of_all() as world_of_all:
                yield world, world_of_all
        except BaseException as error:
            await world.abort(abort_reason(error))
            raise
        await self._close(world)

    @asynccontextmanager
    async def _opened_of_all(self) -> AsyncIterator[OpeningWorld | None]:
        if len(self.generation.clusters) == 1:
            yield None
            return
        async with Nursery() as tasks:
            opening = tasks.create_task(self.decisions.attempt(self._open()))
            await asyncio.sleep(0)  # others get its request before the stage is built, which occupies the loop
            try:
                yield opening
            except BaseException as error:
                opening.cancel()
                world = opening.done() and not opening.cancelled() and not opening.exception() and opening.result()
                if world:
                    await world.abort(abort_reason(error))
                raise
            await self._close(await opening)

    async def _open(self, cluster: int | None = None) -> Transport:
        """A rank of the world of one cluster; None: of the world of the whole generation."""
        generation = self.generation
        name = f"clusters {generation.number}"
        numbers = range(len(generation.clusters))
        if cluster is not None:
            name, numbers = f"{name}, {cluster}", range(cluster, cluster + 1)
        addresses = [place.holder.address for number in numbers for place in generation.clusters[number]]
        backups = [address for number in numbers for address in generation.backup_addresses(number)]
        return await self.worlds.open(name, addresses, backups)

    async def _close(self, world: Transport | None) -> None:
        if world is not None and self.closing_tasks is not None:
            self.closing_tasks.create_task(world.close())
        elif world is not None:
            await world.close()
