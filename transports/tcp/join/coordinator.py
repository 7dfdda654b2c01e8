"""Rank 0's side of the rendezvous: admit every rank, send the table of ranks, send "go" when all are connected.

An error of one rank is sent to all admitted ranks, so that no rank waits for ever.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from transports.errors import RendezvousError, TransportError, WireError
from transports.nursery import Nursery
from transports.tcp.join.acceptor import Acceptor
from transports.tcp.join.control import read_control, refuse, send_control
from transports.tcp.join.handshake import SAME_KEY, Hello, Identity, Verdict, WrongKey
from transports.tcp.sockets import SILENCE_S, Address, is_loopback, readable

NAMED = 16

_logger = logging.getLogger("pipelined.transports")
_logger.addHandler(logging.NullHandler())  # else Python prints the warnings of a logger without handlers


@dataclass(slots=True)
class Seat:
    """A rank that has come: its connection, and the address where it listens, once received."""

    sock: socket.socket
    incarnation: int
    machine: bytes
    address: Address | None = None


class Coordinator:
    """Gathers the other ranks once.

    Args:
        wait: seconds to wait for all ranks to come, and again for all ranks to connect to one another.
    """

    def __init__(self, me: Identity, wait: float):
        self._me, self._wait = me, wait
        self._seats: dict[int, Seat] = {}
        self._full: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._refused: dict[int | None, str] = {}

    async def gather(self, listener: socket.socket) -> dict[int, tuple[socket.socket, bytes]]:
        """The socket and machine of each other rank; closes the listener.

        Raises:
            RendezvousError: ranks did not come, or left; the error names callers that held another key.
        """
        try:
            async with Acceptor(listener, self._me, self._admit, self._seat, self._missed_proof):
                await self._everybody()
            await self._mesh()
        except TransportError as error:
            await self._dismiss(error)
            raise
        except BaseException:
            self._clear()
            raise
        return {rank: (seat.sock, seat.machine) for rank, seat in self._seats.items()}

    async def _everybody(self) -> None:
        try:
            async with asyncio.timeout(self._wait):
                await self._full
        except TimeoutError as error:
            missing = [rank for rank in range(1, self._me.world_size) if not self.is_seated(rank)]
            fact = f"ranks that never came: {listed(missing)} ({len(missing)} of {self._me.world_size}, waited: "
            remedy = "start them, or wait longer with tcp://HOST:PORT?wait=SECONDS"
            if self._refused:
                remedy = f"callers that held another key or none: {self._callers()}; {SAME_KEY}, {remedy}"
            raise RendezvousError(f"{fact}{self._wait:g} s); {remedy}") from error

    def _admit(self, hello: Hello) -> Verdict:
        return Verdict.WELCOME if 0 < hello.rank < self._me.world_size else Verdict.UNEXPECTED

    async def _seat(self, hello: Hello, sock: socket.socket) -> None:
        if hello.rank in self._seats:
            with sock:
                twice = f"two processes claim rank {hello.rank}; give each a RANK of its own"
                return await refuse(sock, RendezvousError(twice))
        seat = self._seats[hello.rank] = Seat(sock, hello.incarnation, hello.machine)
        try:
            async with asyncio.timeout(SILENCE_S):
                seat.address = listening(await read_control(sock, "listening"))
            self._look_around()
            await readable(sock)  # an admitted rank sends nothing before the table: this rank has left
        except (TransportError, OSError, TimeoutError):
            pass
        if not self._full.done():  # else the table is being sent, which will fail
            self._seats.pop(hello.rank).sock.close()

    def is_seated(self, rank: int) -> bool:
        """Whether this rank has come and sent the address where it listens."""
        return rank in self._seats and self._seats[rank].address is not None

    def _look_around(self) -> None:
        if not self._full.done() and all(map(self.is_seated, range(1, self._me.world_size))):
            self._full.set_result(None)

    def _missed_proof(self, error: Exception) -> None:
        """Record a caller with another key, and log it once for each rank number that such callers claim.

        Nothing else happens: any process that reaches the port can claim a rank's number, and the rank itself may still
        come.
        """
        if isinstance(error, WrongKey) and error.claimed not in self._refused:
            self._refused[error.claimed] = error.caller
            _logger.warning("caller refused: %s", error)

    def _callers(self) -> str:
        named = [self._refused[rank] for rank in sorted(self._refused, key=lambda rank: (rank is None, rank))]
        return ", ".join(named[:NAMED]) + (", …" if len(named) > NAMED else "")

    async def _mesh(self) -> None:
        table = [(rank, *seat.address, seat.incarnation) for rank, seat in sorted(self._seats.items())]
        check_reach(seat.address for seat in self._seats.values())
        try:
            async with asyncio.timeout(self._wait):
                await self._with_all(lambda sock: self._meshed(sock, table))
                await self._with_all(lambda sock: send_control(sock, "go"))
        except TimeoutError as error:
            raise RendezvousError(f"the ranks could not all reach one another (waited: {self._wait:g} s)") from error

    async def _meshed(self, sock: socket.socket, table: list[Any]) -> None:
        await send_control(sock, "table", table)
        await read_control(sock, "meshed")

    async def _with_all(self, talk: Callable[[socket.socket], Awaitable[None]]) -> None:
        """Run `talk` with every admitted rank concurrently; the first rank that leaves ends it for all."""

        async def with_one(rank: int, sock: socket.socket) -> None:
            try:
                await talk(sock)
            except (OSError, WireError) as error:
                reason = f"rank {rank} left during the rendezvous ({error}); see its own message"
                raise RendezvousError(reason) from error

        async with Nursery() as group:
            for rank, seat in self._seats.items():
                group.create_task(with_one(rank, seat.sock))

    async def _dismiss(self, error: TransportError) -> None:
        for seat in self._seats.values():
            await refuse(seat.sock, error)
        self._clear()

    def _clear(self) -> None:
        for seat in self._seats.values():
            seat.sock.close()


def listening(content: Any) -> Address:
    """The address in a "listening" message; raises WireError for anything else."""
    try:
        host, port = content
        is_loopback(host)
    except (TypeError, ValueError, AttributeError) as error:
        raise WireError(f"no address where one was due ({content!r}); install one release on every rank") from error
    if type(port) is not int or not 0 < port < 1 << 16:
        raise WireError(f"no port where one was due ({port!r}, from 1 to 65535); install one release on every rank")
    return host, port


def check_reach(addresses: Iterable[Address]) -> None:
    """Refuse a world in which some ranks listen on loopback and others do not."""
    hosts = {host for host, _ in addresses}
    near = sorted(host for host in hosts if is_loopback(host))
    if near and len(near) < len(hosts):
        raise RendezvousError(
            f"some ranks listen on loopback, others elsewhere ({', '.join(sorted(hosts))}); set MASTER_ADDR to an "
            "address of rank 0's machine that all machines can reach"
        )


def listed(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:NAMED]))
    return shown if len(ranks) <= NAMED else f"{shown}, …"
