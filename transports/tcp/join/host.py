"""Rank 0's side of the rendezvous: admit every rank, send the table of ranks, send "go" when all are connected.

An error of one rank is sent to all admitted ranks, so that no rank waits for ever.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from transports.aio.nursery import Nursery
from transports.errors import SAME_RELEASE, RendezvousError, TransportError, WireError
from transports.stream.acceptor import Acceptor, AcceptorOwner
from transports.stream.handshake import Verdict
from transports.stream.shared_key import SAME_KEY, UnprovenKey
from transports.stream.sockets import SocketAddress, is_loopback, wait_readable
from transports.tcp.join.control import read_control, refuse, send_control
from transports.tcp.join.identity import RankHello, RankIdentity

MAX_LISTED = 16

_logger = logging.getLogger("pipelined.transports")
_logger.addHandler(logging.NullHandler())  # else Python prints the warnings of a logger without handlers


@dataclass(slots=True)
class JoinedRank:
    """A rank that was admitted: its connection, the address where it listens, once received, and if it reached all."""

    sock: socket.socket
    incarnation: int
    machine: bytes
    address: SocketAddress | None = None
    meshed: bool = False


class RendezvousHost(AcceptorOwner[RankHello]):
    """Admits the other ranks, once.

    Args:
        wait: seconds to wait for all ranks to come, and again for all ranks to connect to one another.
    """

    def __init__(self, me: RankIdentity, wait: float):
        self._me, self._wait = me, wait
        self._joined_ranks: dict[int, JoinedRank] = {}
        self._complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unproven = set[str]()

    async def admit_all(self, listener: socket.socket) -> dict[int, tuple[socket.socket, bytes]]:
        """The socket and machine of each other rank; closes the listener.

        Raises:
            RendezvousError: ranks did not come, or left; the error names callers that held another key.
        """
        try:
            async with Acceptor(listener, self._me, self):
                await self._wait_for_all()
            await self._connect_all()
        except TransportError as error:
            await self._refuse_all(error)
            raise
        except BaseException:
            self._clear()
            raise
        return {number: (rank.sock, rank.machine) for number, rank in self._joined_ranks.items()}

    async def _wait_for_all(self) -> None:
        try:
            async with asyncio.timeout(self._wait):
                await self._complete
        except TimeoutError as error:
            missing_ranks = [rank for rank in range(1, self._me.world_size) if not self.has_joined(rank)]
            fact = (
                f"missing ranks: {format_ranks(missing_ranks)} ({len(missing_ranks)} of {self._me.world_size}, waited: "
            )
            remedy = "start them, or wait longer with tcp://HOST:PORT?wait=SECONDS"
            if self._unproven:
                remedy = f"callers that held another key or none: {self._callers()}; {SAME_KEY}, {remedy}"
            raise RendezvousError(f"{fact}{self._wait:g} s); {remedy}") from error

    def admit(self, hello: RankHello) -> Verdict:
        return Verdict.ACCEPTED if 0 < hello.rank < self._me.world_size else Verdict.UNEXPECTED

    async def on_admitted(self, hello: RankHello, sock: socket.socket) -> None:
        if hello.rank in self._joined_ranks:
            with sock:
                twice = f"two processes claim rank {hello.rank}; give each a RANK of its own"
                return await refuse(sock, RendezvousError(twice))
        rank = self._joined_ranks[hello.rank] = JoinedRank(sock, hello.incarnation, hello.machine)
        try:
            rank.address = parse_listen_address(await read_control(sock, "listening"))
            self._check_complete()
            await wait_readable(sock)  # an admitted rank sends nothing before the table: this rank has left
        except (TransportError, OSError):
            pass
        if not self._complete.done():  # else the table is being sent, which will fail
            self._joined_ranks.pop(hello.rank).sock.close()

    def has_joined(self, rank: int) -> bool:
        """Whether this rank has come and sent the address where it listens."""
        return rank in self._joined_ranks and self._joined_ranks[rank].address is not None

    def _check_complete(self) -> None:
        if not self._complete.done() and all(map(self.has_joined, range(1, self._me.world_size))):
            self._complete.set_result(None)

    def on_rejected(self, error: Exception) -> None:
        """Record a caller with another key, and log it once for each rank number that such callers claim.

        Nothing else happens: any process that reaches the port can claim a rank's number, and the rank itself may still
        come.
        """
        if isinstance(error, UnprovenKey) and error.caller not in self._unproven:
            self._unproven.add(error.caller)
            _logger.warning("caller refused: %s", error)

    def _callers(self) -> str:
        callers = sorted(self._unproven, key=lambda caller: (len(caller), caller))  # rank 2, rank 10, an unknown caller
        return ", ".join(callers[:MAX_LISTED]) + (", …" if len(callers) > MAX_LISTED else "")

    async def _connect_all(self) -> None:
        addresses = {
            number: rank.address for number, rank in sorted(self._joined_ranks.items()) if rank.address is not None
        }
        table = [(number, *address, self._joined_ranks[number].incarnation) for number, address in addresses.items()]
        check_reach(addresses.values())
        try:
            async with asyncio.timeout(self._wait):
                await self._exchange_with_all(lambda rank: self._send_table(rank, table))
                await self._exchange_with_all(lambda rank: send_control(rank.sock, "go"))
        except TimeoutError as error:
            missing_ranks = [number for number, rank in sorted(self._joined_ranks.items()) if not rank.meshed]
            waits = f"{len(missing_ranks)} of {self._me.world_size}, waited: {self._wait:g} s"
            fact = f"ranks {format_ranks(missing_ranks)} are not connected with all others ({waits})"
            remedy = "if they were only busy, wait longer with tcp://HOST:PORT?wait=SECONDS"
            raise RendezvousError(f"{fact}; {remedy}") from error

    async def _send_table(self, rank: JoinedRank, table: list[Any]) -> None:
        await send_control(rank.sock, "table", table)
        await read_control(rank.sock, "meshed")
        rank.meshed = True

    async def _exchange_with_all(self, exchange: Callable[[JoinedRank], Awaitable[None]]) -> None:
        """Run `exchange` with every admitted rank concurrently; the first rank that leaves ends it for all."""

        async def with_one(number: int, rank: JoinedRank) -> None:
            try:
                await exchange(rank)
            except (OSError, WireError) as error:
                reason = f"rank {number} left during the rendezvous ({error}); see its own message"
                raise RendezvousError(reason) from error

        async with Nursery() as group:
            for number, rank in self._joined_ranks.items():
                group.create_task(with_one(number, rank))

    async def _refuse_all(self, error: TransportError) -> None:
        for rank in self._joined_ranks.values():
            await refuse(rank.sock, error)
        self._clear()

    def _clear(self) -> None:
        for rank in self._joined_ranks.values():
            rank.sock.close()


def parse_listen_address(content: Any) -> SocketAddress:
    """The address in a "listening" message; raises WireError for anything else."""
    try:
        host, port = content
        is_loopback(host)
    except (TypeError, ValueError, AttributeError) as error:
        raise WireError(f"invalid address in a control message ({content!r}); {SAME_RELEASE}") from error
    if type(port) is not int or not 0 < port < 1 << 16:
        raise WireError(f"invalid port in a control message ({port!r}, from 1 to 65535); {SAME_RELEASE}")
    return host, port


def check_reach(addresses: Iterable[SocketAddress]) -> None:
    """Refuse a world in which some ranks listen on loopback and others do not."""
    hosts = {host for host, _ in addresses}
    loopback_hosts = sorted(host for host in hosts if is_loopback(host))
    if loopback_hosts and len(loopback_hosts) < len(hosts):
        fact = f"some ranks listen on loopback, others elsewhere ({', '.join(sorted(hosts))})"
        raise RendezvousError(f"{fact}; set MASTER_ADDR to an address of rank 0's machine that all machines can reach")


def format_ranks(ranks: list[int]) -> str:
    text = ", ".join(map(str, ranks[:MAX_LISTED]))
    return text if len(ranks) <= MAX_LISTED else f"{text}, …"
