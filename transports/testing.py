"""For tests and benchmarks: worlds of ranks in one process, with chosen nodes. `Transport.kill` ends one of them.

Programs do not import this; they open the ranks of one process with `transports.open_local`.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from transports.aio.event_loop import yield_to_timers
from transports.aio.nursery import Nursery
from transports.errors import PeerLost, TransportError
from transports.local import LocalTransport, world
from transports.rpc.virtual.network import VirtualNetwork
from transports.rpc.world import RpcTransport, Worlds
from transports.tcp.flow_control import credit_limit
from transports.tcp.join.config import TcpConfig, this_machine
from transports.tcp.join.meeting_points import LOOPBACK, InProcess
from transports.tcp.transport import TcpTransport, connect_ranks


def local_world(world_size: int, nodes: Sequence[int] = (), shares: bool = False) -> Sequence[LocalTransport]:
    """The ranks of a `local` world, in order, for one event loop.

    Args:
        nodes: for each rank, the lowest rank of its pretended node; if empty, all ranks are on one node.
        shares: whether the ranks of a node offer shared memory.
    """
    if not nodes and not shares:
        return world(world_size)
    ranks: list[OnNodes] = []
    ranks.extend(OnNodes(rank, ranks, tuple(nodes) or (0,) * world_size, shares) for rank in range(world_size))
    return ranks


async def tcp_world(
    world_size: int, key: bytes = b"", machines: Sequence[str] = (), limit: int = 0, unix: bool = False
) -> list[TcpTransport]:
    """The ranks of a `tcp` world, in order, over loopback, for one event loop.

    Args:
        machines: the name of each rank's pretended machine; if empty, all ranks run on this machine.
        limit: bytes of unexpected messages that a rank keeps from each peer; 0: the limit of programs.
        unix: whether ranks of one machine use Unix sockets, as ranks in several processes do.
    """
    point, limit = InProcess(), limit or credit_limit(world_size)
    names = machines or [this_machine()] * world_size
    configs = [
        TcpConfig(rank, world_size, LOOPBACK, 0, key=key, machine=name, unix=unix) for rank, name in enumerate(names)
    ]
    async with Nursery() as group:
        found = [group.create_task(connect_ranks(config, point, limit)) for config in configs]
    return [task.result() for task in found]


async def endpoint_world(world_size: int) -> list[RpcTransport]:
    """The ranks of a world between endpoints, in order, on a virtual network without delay, for one event loop."""
    network = VirtualNetwork(delay=0.0)
    ends = [network.endpoint(f"party{rank}") for rank in range(world_size)]
    addresses = [end.address for end in ends]
    async with Nursery() as group:
        found = [group.create_task(Worlds(end, 1 << 30).open("world", addresses)) for end in ends]
    return [task.result() for task in found]


class OnNodes(LocalTransport):
    """A rank on a node of its world, which may share memory with the ranks of its node."""

    def __init__(self, rank: int, ranks: Sequence["OnNodes"], nodes: tuple[int, ...], shares: bool):
        super().__init__(rank, len(nodes), ranks)
        self._nodes, self._shares, self._world = nodes, shares, ranks
        self._tables: dict[tuple[tuple[int, ...], int, int], BarrierTable] = {}

    @property
    def nodes(self) -> tuple[int, ...]:
        return self._nodes

    async def open_shared(self, ranks: Sequence[int], channel: int, nbytes: int) -> "LocalShared | None":
        if not self._shares or len({self.nodes[rank] for rank in ranks}) > 1:
            return None
        group = (tuple(ranks), channel, self.next_serial(("shared", tuple(ranks), channel)))
        found = (self._world[rank]._tables.get(group) for rank in ranks)
        self._tables[group] = next((table for table in found if table), None) or BarrierTable(len(ranks), nbytes)
        return LocalShared(self._tables[group], ranks, ranks.index(self.rank), self._state.check_sendable)

    def _lose(self, error: PeerLost) -> None:
        super()._lose(error)
        self._wake_sharers()

    def _finish(self, error: TransportError) -> None:
        super()._finish(error)
        self._wake_sharers()

    def _wake_sharers(self) -> None:
        """Let each rank that waits in a barrier check again which ranks are lost."""
        for table in self._tables.values():
            table.wake()


class BarrierTable:
    """The barriers of one group: the ranks' windows, the count of barriers of each, and the ranks that wait."""

    def __init__(self, size: int, nbytes: int):
        self.windows = [memoryview(bytearray(nbytes)) for _ in range(size)]
        self.epochs = [0] * size
        self.waiting: list[asyncio.Future[None]] = []

    def wake(self) -> None:
        """Let every rank that waits check again."""
        waiting, self.waiting = self.waiting, []
        for future in waiting:
            with suppress(asyncio.InvalidStateError):
                future.set_result(None)


class LocalShared:
    """`transports.base.SharedWindows` in one process: no rank leaves a barrier before all have come.

    Args:
        ranks: the ranks of the group.
        index: this rank's index in `ranks`.
        check: raises if this end has ended or the given rank is lost.
    """

    def __init__(self, table: BarrierTable, ranks: Sequence[int], index: int, check: Callable[[int], None]):
        self._table, self._ranks, self._index, self._check = table, tuple(ranks), index, check
        self.windows = table.windows

    @property
    def epoch(self) -> int:
        return self._table.epochs[self._index]

    async def barrier(self) -> None:
        epochs = self._table.epochs
        epochs[self._index] += 1
        self._table.wake()
        due = epochs[self._index]
        while (late := next((index for index, epoch in enumerate(epochs) if epoch < due), None)) is not None:
            self._check(self._ranks[late])
            future = asyncio.get_running_loop().create_future()
            self._table.waiting.append(future)
            await future

    async def yield_core(self) -> None:
        await yield_to_timers()
