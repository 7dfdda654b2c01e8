"""The rendezvous: connects all ranks, with one connection between each two.

    rank r > 0                                  rank 0
    connects at the meeting point          →    admits it (each rank once)
    "listening" [host, port]               →
                                           ←    "table" [[rank, host, port, incarnation], …] when all have come
    connects to every rank between 0 and r; admits every rank above r
    "meshed"                               →
                                           ←    "go" when all have sent "meshed"

The connection on which a rank was admitted stays its connection with rank 0. If any rank leaves or is missing before
"go", rank 0 refuses all ranks, with the reason. A function that raises closes every socket that it opened.
"""

import asyncio
import random
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from transports.aio.nursery import Nursery
from transports.errors import SAME_RELEASE, RendezvousError, WireError
from transports.stream.acceptor import Acceptor, AcceptorOwner, run_handshake
from transports.stream.handshake import Verdict, connecting
from transports.stream.sockets import (
    HANDSHAKE_TIMEOUT_S,
    SocketAddress,
    address_to_bind,
    check_files,
    connect_to,
    listen,
    set_options,
    system_text,
)
from transports.tcp.join.config import TcpConfig
from transports.tcp.join.control import read_control, send_control
from transports.tcp.join.host import RendezvousHost, parse_listen_address
from transports.tcp.join.identity import RankHello, RankIdentity, digest
from transports.tcp.join.meeting_points import MeetingPoint, checked_address

RETRY_S, MAX_RETRY_S = 0.05, 8.0
TABLE_BYTES = 1 << 12
ENTRY_BYTES = 1 << 7


class PeerSockets(dict[int, socket.socket]):
    """A socket for each other rank, in order of rank.

    Attributes:
        machines: the machine identifier of each rank, including this rank.
    """

    def __init__(self, me: RankIdentity, connected: Mapping[int, tuple[socket.socket, bytes]]):
        super().__init__({rank: sock for rank, (sock, _) in sorted(connected.items())})
        self.machines = {rank: machine for rank, (_, machine) in connected.items()} | {me.rank: me.machine}

    @property
    def nodes(self) -> tuple[int, ...]:
        """The lowest rank of each rank's machine."""
        lowest: dict[bytes, int] = {}
        return tuple(lowest.setdefault(machine, rank) for rank, machine in sorted(self.machines.items()))


async def join_world(config: TcpConfig, point: MeetingPoint) -> PeerSockets:
    """One connected, authenticated socket for each other rank; the caller owns them.

    Raises:
        RendezvousError: ranks did not come (the error names them), a port is in use, rank 0 cannot be reached, or two
            processes claim one rank.
        AuthenticationError: this rank's key is not rank 0's.
    Cost: world_size - 1 connections; three round trips with rank 0.
    """
    check_files(config.world_size)
    run, machine = digest(config.run), digest(config.machine)
    me = RankIdentity(
        rank=config.rank,
        world_size=config.world_size,
        run=run,
        incarnation=secrets.randbits(63),
        shared_key=config.shared_key,
        machine=machine,
    )
    if config.world_size == 1:
        return PeerSockets(me, {})
    if config.rank == 0:
        listener = await point.listen()
        try:
            me = with_shared_key(me, point)
            return PeerSockets(me, await RendezvousHost(me, config.wait).admit_all(listener))
        finally:
            point.close()
    with ExitStack() as resources:
        sock, hello = await connect_to_rank_0(config, point, me)
        resources.callback(sock.close)
        peers = await join_rank_0(config, with_shared_key(me, point), sock, hello, resources)
        resources.pop_all()
        return peers


def with_shared_key(me: RankIdentity, point: MeetingPoint) -> RankIdentity:
    """This rank's identity with the key of the meeting point, unless it has its own key."""
    return me if me.shared_key else replace(me, shared_key=point.shared_key)


async def connect_to_rank_0(
    config: TcpConfig, point: MeetingPoint, me: RankIdentity
) -> tuple[socket.socket, RankHello]:
    """Connect to rank 0 at the meeting point; retry until rank 0 admits this rank or `config.wait` is over."""
    last_failure = "nothing was published there"
    pauses = pauses_after_drops()

    async def attempt(address: SocketAddress) -> tuple[socket.socket, RankHello] | None:
        nonlocal last_failure
        place = f"{address[0]}:{address[1]}"
        pause = 0.0
        try:
            sock = await connect_to(address)
            pause = next(pauses)
            last_failure = (
                f"what listens at {place} does not reply: rank 0 is busy, or the port belongs to another program"
            )
            return sock, await handshake_with(sock, address, with_shared_key(me, point), 0, max_silence_s(config.wait))
        except OSError as error:
            last_failure = f"{place}: {system_text(error)}"
            await asyncio.sleep(pause)
            return None

    try:
        async with asyncio.timeout(config.wait):
            while True:
                try:
                    for address in await point.find():
                        if connection := await attempt(address):
                            return connection
                except OSError as error:
                    last_failure = f"{config.host}: {system_text(error)}"
                await asyncio.sleep(RETRY_S)
    except TimeoutError as error:
        fact = f"rank {me.rank} could not reach rank 0 (waited: {config.wait:g} s; {last_failure})"
        raise RendezvousError(f"{fact}; start rank 0, or check MASTER_ADDR and MASTER_PORT") from error


def pauses_after_drops() -> Iterator[float]:
    """Seconds before a rank repeats a dropped handshake: at random, so that of many ranks few repeat it at once."""
    longest = 2 * RETRY_S
    while True:
        yield random.uniform(0.0, longest)
        longest = min(2 * longest, MAX_RETRY_S)


def max_silence_s(wait: float) -> float:
    """Seconds for which what listens at rank 0's port may be silent: rank 0 is busy, or it is another program.

    With the default `?wait=`, all ranks must end within 10 s if another program has the port.
    """
    return max(HANDSHAKE_TIMEOUT_S, wait / 10)


async def handshake_with(
    sock: socket.socket, address: SocketAddress, me: RankIdentity, peer: int, silence: float | None = None
) -> RankHello:
    """Complete the handshake with a rank on a connection to it; the socket is closed if that fails.

    Args:
        silence: seconds after which a silent end is no rank; None: it is known to be one, and may be busy.
    Raises:
        OSError: the other end closed the connection, as one that was busy during the handshake does.
        AuthenticationError, RendezvousError: refused, or no rank answers there.
    """
    try:
        async with asyncio.timeout(silence) as limit:
            set_options(sock)
            return await run_handshake(sock, connecting(me, peer))
    except BaseException as error:
        sock.close()
        is_silent = isinstance(error, TimeoutError) and limit.expired()
        if not is_silent and not isinstance(error, WireError):
            raise
        fact = f"silent for {silence:g} s" if is_silent else str(error)
        raise RendezvousError(
            f"what listens at {address[0]}:{address[1]} does not answer as rank {peer} ({fact}); "
            "the port may belong to another program: choose another MASTER_PORT; or it is busy: wait longer with ?wait="
        ) from error


async def join_rank_0(
    config: TcpConfig, me: RankIdentity, rank_0: socket.socket, hello: RankHello, resources: ExitStack
) -> PeerSockets:
    """Send rank 0 this rank's address, connect to the other ranks, wait for "go"; `resources` closes the sockets."""
    own_host = rank_0.getsockname()[0]
    listener = listen(address_to_bind((own_host, 0)))
    resources.callback(listener.close)
    try:
        async with asyncio.timeout(2 * config.wait):
            await send_control(rank_0, "listening", [own_host, listener.getsockname()[1]])
            table = read_table(await read_control(rank_0, "table", TABLE_BYTES + ENTRY_BYTES * me.world_size), config)
        async with asyncio.timeout(2 * config.wait):
            return await PeerConnector(me, (rank_0, hello.machine), table, resources).connect_all(listener)
    except TimeoutError as error:
        raise RendezvousError(
            f"no message from rank 0 during the rendezvous (waited: {2 * config.wait:g} s)"
        ) from error
    except (OSError, WireError) as error:
        raise RendezvousError(f"rank 0 left during the rendezvous ({error}); see its own message") from error


@dataclass(frozen=True, slots=True)
class RankAddress:
    """The address where a rank listens, and its incarnation."""

    address: SocketAddress
    incarnation: int


def read_table(content: Any, config: TcpConfig) -> dict[int, RankAddress]:
    """Parse and check a table of ranks; raises WireError if it is malformed or names other ranks."""
    try:
        table = {
            rank: RankAddress(checked_address(parse_listen_address([host, port]), config), incarnation)
            for rank, host, port, incarnation in content
        }
    except (TypeError, ValueError) as error:
        raise WireError(f"invalid table of ranks ({error}); {SAME_RELEASE}") from error
    if set(table) != set(range(1, config.world_size)):
        raise WireError(f"the table names other ranks than 1 to {config.world_size - 1}; {SAME_RELEASE}")
    return table


class PeerConnector(AcceptorOwner[RankHello]):
    """One connection to every other rank: connect to the lower ones, admit the higher ones.

    Args:
        rank_0: the socket and the machine of rank 0.
        opened: closes every socket that this opens, if the rendezvous fails.
    """

    def __init__(
        self, me: RankIdentity, rank_0: tuple[socket.socket, bytes], table: dict[int, RankAddress], opened: ExitStack
    ):
        self._me = me
        self._rank_0 = rank_0[0]
        self._table = table
        self._opened = opened
        self._peers = {0: rank_0}
        self._complete = asyncio.Event()

    async def connect_all(self, listener: socket.socket) -> PeerSockets:
        """Connect to all ranks; return when rank 0 sends "go". Closes the listener."""
        async with Acceptor(listener, self._me, self), Nursery() as group:
            group.create_task(read_control(self._rank_0, "go"))  # or a refusal, at any time
            group.create_task(self._report())
            for rank in range(1, self._me.rank):
                group.create_task(self._connect(rank))
        return PeerSockets(self._me, self._peers)

    async def _report(self) -> None:
        self._check_complete()
        await self._complete.wait()
        await send_control(self._rank_0, "meshed")

    async def _connect(self, rank: int) -> None:
        entry = self._table[rank]
        hello = None
        pauses = pauses_after_drops()
        while hello is None:
            try:
                sock = await connect_to(entry.address)
            except OSError as error:
                host, port = entry.address
                raise RendezvousError(
                    f"rank {self._me.rank} cannot reach rank {rank} ({host}:{port}: {system_text(error)}); "
                    "let the ranks' machines connect to one another on every port"
                ) from error
            try:
                hello = await handshake_with(sock, entry.address, self._me, rank)
            except OSError:  # it was too busy for this handshake
                await asyncio.sleep(next(pauses))
        self._keep(hello, sock)
        if hello.incarnation != entry.incarnation:
            raise RendezvousError(f"rank {rank} is another process than the one that joined; start the job again")

    def admit(self, hello: RankHello) -> Verdict:
        expected = hello.rank > self._me.rank and hello.rank not in self._peers
        known = expected and hello.rank in self._table and self._table[hello.rank].incarnation == hello.incarnation
        return Verdict.ACCEPTED if known else Verdict.UNEXPECTED

    async def on_admitted(self, hello: RankHello, sock: socket.socket) -> None:
        self._keep(hello, sock)

    def _keep(self, hello: RankHello, sock: socket.socket) -> None:
        self._opened.callback(sock.close)
        self._peers[hello.rank] = sock, hello.machine
        self._check_complete()

    def _check_complete(self) -> None:
        if len(self._peers) == self._me.world_size - 1:
            self._complete.set()
