"""Rank 0's side of the rendezvous: seat every rank, hand out the table, say "go" when all are meshed.

The one rule: whatever goes wrong with one rank is told to all that are seated, so that nobody waits for ever.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from transports._door import Door
from transports._errors import RendezvousError, TransportError, WireError
from transports._handshake import Hello, Identity, Verdict, WrongKey
from transports._letters import read_letter, refuse, send_letter
from transports._nursery import Nursery
from transports._sockets import SILENCE_S, Address, is_loopback, readable

SECOND_CHANCE_S = 3.0
NAMED = 16


@dataclass(slots=True)
class Seat:
    """A rank that has come: its connection, and once it said so, where it listens."""

    sock: socket.socket
    incarnation: int
    machine: bytes
    address: Address | None = None


class Coordinator:
    """Gathers the other ranks once.

    Args:
        wait: seconds until a rank that has not come is given up, and again for the ranks to mesh.
        drawn: whether the meeting point gives every rank the key, so that a caller with another one is a stranger.
    """

    def __init__(self, me: Identity, wait: float, drawn: bool = False):
        self._me, self._wait, self._drawn = me, wait, drawn
        self._seats: dict[int, Seat] = {}
        self._full: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._chances: list[asyncio.TimerHandle] = []

    async def gather(self, listener: socket.socket) -> dict[int, tuple[socket.socket, bytes]]:
        """Every other rank's socket and machine; closes the listener.

        Raises:
            RendezvousError: ranks did not come or left again. AuthenticationError: one came with another key only.
        """
        try:
            async with Door(listener, self._me, self._admit, self._seat, self._missed_proof):
                await self._everybody()
            await self._mesh()
        except TransportError as error:
            await self._dismiss(error)
            raise
        except BaseException:
            self._clear()
            raise
        finally:
            for chance in self._chances:
                chance.cancel()
        return {rank: (seat.sock, seat.machine) for rank, seat in self._seats.items()}

    async def _everybody(self) -> None:
        try:
            async with asyncio.timeout(self._wait):
                await self._full
        except TimeoutError as error:
            missing = [rank for rank in range(1, self._me.world_size) if not self.is_seated(rank)]
            raise RendezvousError(
                f"ranks that never came: {listed(missing)} ({len(missing)} of {self._me.world_size}, waited: "
                f"{self._wait:g} s); start them, or wait longer with tcp://HOST:PORT?wait=SECONDS"
            ) from error

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
                seat.address = listening(await read_letter(sock, "listening"))
            self._look_around()
            await readable(sock)  # who is seated keeps silent until the table comes: this one has left
        except (TransportError, OSError, TimeoutError):
            pass
        if not self._full.done():  # else the table is being written, and handing it out will notice
            self._seats.pop(hello.rank).sock.close()

    def is_seated(self, rank: int) -> bool:
        """Whether this rank has come, and said where it listens."""
        return rank in self._seats and self._seats[rank].address is not None

    def _look_around(self) -> None:
        if not self._full.done() and all(map(self.is_seated, range(1, self._me.world_size))):
            self._full.set_result(None)

    def _missed_proof(self, error: Exception) -> None:
        """Give up soon if a rank came with another key, which the caller may be unless every rank has been given it.

        A stranger that takes the number of a rank changes nothing where that rank itself comes in time.
        """

        def give_up() -> None:
            if not self._full.done() and not self.is_seated(error.claimed):
                self._full.set_exception(error)

        if isinstance(error, WrongKey) and error.claimed is not None and not self._drawn:
            self._chances.append(asyncio.get_running_loop().call_later(SECOND_CHANCE_S, give_up))

    async def _mesh(self) -> None:
        table = [(rank, *seat.address, seat.incarnation) for rank, seat in sorted(self._seats.items())]
        check_reach(seat.address for seat in self._seats.values())
        try:
            async with asyncio.timeout(self._wait):
                await self._with_all(lambda sock: self._meshed(sock, table))
                await self._with_all(lambda sock: send_letter(sock, "go"))
        except TimeoutError as error:
            raise RendezvousError(f"the ranks could not all reach one another (waited: {self._wait:g} s)") from error

    async def _meshed(self, sock: socket.socket, table: list[Any]) -> None:
        await send_letter(sock, "table", table)
        await read_letter(sock, "meshed")

    async def _with_all(self, talk: Callable[[socket.socket], Awaitable[None]]) -> None:
        """Talk with every seated rank at once; the first that leaves ends it for all."""

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
    """The address in a "listening" letter; raises WireError for anything else."""
    try:
        host, port = content
        is_loopback(host)
    except (TypeError, ValueError, AttributeError) as error:
        raise WireError(f"no address where one was due ({content!r}); install one release on every rank") from error
    if type(port) is not int or not 0 < port < 1 << 16:
        raise WireError(f"no port where one was due ({port!r}, from 1 to 65535); install one release on every rank")
    return host, port


def check_reach(addresses: Iterable[Address]) -> None:
    """Refuse a world in which some ranks can be reached on their own machine only."""
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
