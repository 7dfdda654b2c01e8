"""Worlds of ranks in one process, on chosen nodes, for tests and benchmarks. `kill` ends one of them."""

import math
import socket
from collections.abc import Sequence

from tests.conformance.nodes import LocalRankOnNode
from transports.aio.nursery import Nursery
from transports.base import Transport
from transports.emulation.transport import SlowTransport
from transports.errors import Closed, PeerLost
from transports.local import LocalTransport, world
from transports.rpc.virtual.endpoint import VirtualEndpoint
from transports.rpc.virtual.network import VirtualNetwork
from transports.rpc.world import RpcTransport, Worlds
from transports.stream.connection import Ending
from transports.stream.sockets import SocketAddress, listen
from transports.tcp.flow_control import credit_limit
from transports.tcp.join.config import TcpConfig, this_machine
from transports.tcp.join.meeting_points import LOOPBACK, MeetingPoint
from transports.tcp.transport import TcpTransport, connect_ranks


class InProcess(MeetingPoint):
    """All ranks share this object, and meet at a free port on loopback."""

    def __init__(self) -> None:
        self._found: list[SocketAddress] = []

    async def listen(self) -> socket.socket:
        listener = listen((LOOPBACK, 0))
        self._found = [listener.getsockname()]
        return listener

    async def find(self) -> list[SocketAddress]:
        return self._found


def local_world(world_size: int, nodes: Sequence[int] = (), shared_memory: bool = False) -> Sequence[LocalTransport]:
    """The ranks of a `local` world, in order, for one event loop.

    Args:
        nodes: for each rank, the lowest rank of its pretended node; if empty, all ranks are on one node.
        shared_memory: whether the ranks of a node offer shared memory.
    """
    if not nodes and not shared_memory:
        return world(world_size)
    ranks: list[LocalRankOnNode] = []
    ranks.extend(
        LocalRankOnNode(rank, ranks, tuple(nodes) or (0,) * world_size, shared_memory) for rank in range(world_size)
    )
    return ranks


async def tcp_world(
    world_size: int, key: bytes = b"", machines: Sequence[str] = (), max_kept: int = 0, unix: bool = False
) -> list[TcpTransport]:
    """The ranks of a `tcp` world, in order, over loopback, for one event loop.

    Args:
        machines: the name of each rank's pretended machine; if empty, all ranks run on this machine.
        max_kept: bytes of unexpected messages that a rank keeps from each peer; 0: the limit of programs.
        unix: whether ranks of one machine use Unix sockets, as ranks in several processes do.
    """
    point, max_kept = InProcess(), max_kept or credit_limit(world_size)
    names = machines or [this_machine()] * world_size
    configs = [
        TcpConfig(rank, world_size, LOOPBACK, 0, shared_key=key, machine=name, unix=unix)
        for rank, name in enumerate(names)
    ]
    async with Nursery() as group:
        found = [group.create_task(connect_ranks(config, point, max_kept)) for config in configs]
    return [task.result() for task in found]


async def endpoint_world(world_size: int, rate: float = math.inf) -> list[RpcTransport]:
    """The ranks of a world between endpoints, in order, on a virtual network without delay, for one event loop."""
    network = VirtualNetwork(delay=0.0, rate=rate)
    ends = [network.endpoint(f"party{rank}") for rank in range(world_size)]
    addresses = [end.address for end in ends]
    async with Nursery() as group:
        found = [group.create_task(Worlds(end, 1 << 30).open("world", addresses)) for end in ends]
    return [task.result() for task in found]


def kill(end: Transport, reason: str = "it was killed") -> None:
    """End a rank of this process as if it had a process of its own that was killed. What it has not yet sent is lost.

    The other ranks lose it with this reason, or, over sockets, with what they see of its connection.

    Raises:
        TypeError: ranks of this transport are processes; kill the process instead.
    """
    dead = Closed(f"rank {end.rank} is dead: {reason}")
    match end:
        case SlowTransport():
            kill(end._inner, reason)
            end._end(dead)
        case LocalTransport():
            end._finish(dead)
            for other in end._other_ranks():
                other._messages.drop(end.rank)
                other._buffers.drop(end.rank)
                other._lose(PeerLost(end.rank, reason))
        case TcpTransport():
            end._peers.end(Ending.DROP, dead)
        case RpcTransport() if isinstance(end._world.endpoint, VirtualEndpoint):
            end._world.state.end(dead)
            end._world.endpoint.kill()
        case _:
            raise TypeError(f"a rank of {type(end).__name__} dies with its process; kill that")
