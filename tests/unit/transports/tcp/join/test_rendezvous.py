"""The rendezvous, all ranks in one process: all ranks connect, or all report why not."""

import asyncio
import socket
from contextlib import ExitStack

import pytest

from tests.conformance.worlds import InProcess
from tests.unit.transports.tcp.idle import limits_when_idle
from tests.unit.transports.tcp.join.calling import connect
from transports import AuthenticationError, RendezvousError, WireError
from transports.stream.acceptor import run_handshake
from transports.stream.handshake import Verdict, accepting, connecting
from transports.stream.sockets import (
    HANDSHAKE_TIMEOUT_S,
    KEEPALIVE,
    accept,
    connect_to,
    listen,
    read_exactly,
    wait_readable,
)
from transports.tcp.join.config import TcpConfig
from transports.tcp.join.control import CONTROL_BYTES, LENGTH, read_control, send_control
from transports.tcp.join.host import RendezvousHost, check_reach
from transports.tcp.join.identity import RankIdentity, digest
from transports.tcp.join.meeting_points import LOOPBACK, MasterPort, checked_address
from transports.tcp.join.rendezvous import join_world, read_table

KEY = b"secret"


def config(rank, world_size, **changes):
    return TcpConfig(**{"rank": rank, "world_size": world_size, "host": LOOPBACK, "port": 0, "wait": 20.0, **changes})


async def gathered(*configs, point=None):
    """Gather these ranks; returns what each got: a dict of sockets, all closed again, or an error."""
    point = point or InProcess()
    ends = await asyncio.gather(*(join_world(config, point) for config in configs), return_exceptions=True)
    for end in ends:
        if isinstance(end, dict):
            for sock in end.values():
                sock.close()
    return ends


def pairs(ends):
    """Which sockets are the two ends of one connection: {(rank, peer): (own port, peer's port)}."""
    return {
        (rank, peer): (sock.getsockname()[1], sock.getpeername()[1])
        for rank, end in enumerate(ends)
        for peer, sock in end.items()
    }


class Joining:
    """Rank 0 at work, seen from outside: `point` is where it listens, `end` what it got."""

    def __init__(self, world_size, key=b""):
        self.point, self.world_size, self.key = InProcess(), world_size, key

    async def __aenter__(self):
        listener = await self.point.listen()
        self.address = listener.getsockname()
        self.host = RendezvousHost(identity(0, self.world_size, self.key), 20.0)
        self._gathering = asyncio.create_task(self.host.admit_all(listener))
        return self

    async def __aexit__(self, *exc):
        (self.end,) = await asyncio.gather(self._gathering, return_exceptions=True)
        for sock, _ in self.end.values() if isinstance(self.end, dict) else ():
            sock.close()

    def join(self, rank):
        """A real rank that gathers on its own; await it for its end."""
        return asyncio.create_task(gathered(config(rank, self.world_size, shared_key=self.key), point=self.point))

    async def seat(self, rank, listening=(LOOPBACK, 1)):
        """A rank played by the test: it has told where it listens, and waits for the table."""
        sock, _ = await connect(self.address, identity(rank, self.world_size, self.key), 0)
        await send_control(sock, "listening", listening)
        await self.until(rank)
        return sock

    async def until_meshed(self, rank):
        while not self.host._joined_ranks[rank].meshed:  # noqa: ASYNC110 (there is nothing to wait on)
            await asyncio.sleep(0)

    async def until(self, rank, joined=True):
        while self.host.has_joined(rank) != joined:  # noqa: ASYNC110 (there is nothing to wait on)
            await asyncio.sleep(0)


def identity(rank, world_size, key=b""):
    return RankIdentity(rank, world_size, digest("none/0"), 1 + rank, key)


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_every_pair_ends_up_with_one_connection(world_size):
    async def open_all():
        point = InProcess()
        configs = [config(rank, world_size, shared_key=KEY) for rank in range(world_size)]
        ends = await asyncio.gather(*(join_world(config, point) for config in configs))
        lines = pairs(ends)
        for end in ends:
            for sock in end.values():
                sock.close()
        return lines

    lines = asyncio.run(open_all())
    assert set(lines) == {(a, b) for a in range(world_size) for b in range(world_size) if a != b}
    assert all(lines[peer, rank] == (there, here) for (rank, peer), (here, there) in lines.items())


def test_the_kernel_examines_every_connection_of_ranks_that_is_idle():
    """Without these options of its sockets a rank never notices that another's machine vanished."""

    async def open_all():
        point = InProcess()
        ends = await asyncio.gather(*(join_world(config(rank, 3, shared_key=KEY), point) for rank in range(3)))
        with ExitStack() as opened:
            return [limits_when_idle(opened.enter_context(sock)) for end in ends for sock in end.values()]

    assert asyncio.run(open_all()) == 6 * [(1, *KEEPALIVE)]


async def test_all_ranks_know_which_ranks_share_a_machine():
    point, machines = InProcess(), ["here", "there", "here", "elsewhere", "there"]
    configs = [config(rank, 5, shared_key=KEY, machine=name) for rank, name in enumerate(machines)]
    ends = await asyncio.gather(*(join_world(each, point) for each in configs))
    for end in ends:
        for sock in end.values():
            sock.close()
    assert [end.nodes for end in ends] == [(0, 1, 0, 3, 1)] * 5


def test_missing_ranks_are_named_to_all_that_came():
    ends = asyncio.run(gathered(config(0, 5, wait=0.3), config(3, 5, wait=0.3)))
    for end in ends:
        assert isinstance(end, RendezvousError)
        assert "missing ranks: 1, 2, 4 (3 of 5, waited: 0.3 s)" in str(end)
        assert "?wait=" in str(end)


class FoundUntilRefused(MasterPort):
    """A meeting point that lets the rank's time run out, on the loop's own clock, once a call has been refused."""

    def __init__(self, at, monkeypatch):
        super().__init__(at)
        self._monkeypatch, self._found = monkeypatch, 0

    async def find(self):
        self._found += 1
        if self._found == 2:
            loop = asyncio.get_running_loop()
            late = loop.time
            self._monkeypatch.setattr(loop, "time", lambda: late() + self._config.wait)
        return await super().find()


def test_the_error_for_a_missing_rank_0_lists_the_attempts(monkeypatch):
    with socket.socket() as unused:
        unused.bind((LOOPBACK, 0))  # bound, not listening: connections are refused
        at = config(1, 2, port=unused.getsockname()[1])
        (end,) = asyncio.run(gathered(at, point=FoundUntilRefused(at, monkeypatch)))
    assert isinstance(end, RendezvousError)
    assert f"{LOOPBACK}:{at.port}: Connection refused" in str(end) and "MASTER_PORT" in str(end)


def test_a_used_port_is_an_immediate_error_on_all_ranks():
    async def open_all():
        async def answer(taken):
            with await accept(taken) as sock:
                sock.send(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n" + bytes(100))

        with listen((LOOPBACK, 0)) as taken:
            answering = asyncio.create_task(answer(taken))
            configs = [config(rank, 2, port=taken.getsockname()[1]) for rank in range(2)]
            ends = [end for at in configs for end in await gathered(at, point=MasterPort(at))]
            await answering
            return ends

    rank_0, rank_1 = asyncio.run(asyncio.wait_for(open_all(), 5))
    assert isinstance(rank_0, RendezvousError) and "is taken" in str(rank_0) and "MASTER_PORT" in str(rank_0)
    assert isinstance(rank_1, RendezvousError) and "does not answer as rank 0" in str(rank_1)
    assert "choose another MASTER_PORT" in str(rank_1)


def pass_time(seconds):
    """Let the clock of the running loop be later by this."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds


async def turns(count=50):
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_silent_program_on_the_port_is_distinguished_from_a_rank_0_that_is_missing():
    async def scenario():
        with listen((LOOPBACK, 0)) as silent:
            at = config(1, 2, port=silent.getsockname()[1])
            joining = asyncio.create_task(gathered(at, point=MasterPort(at)))
            await wait_readable(silent)
            await turns()
            pass_time(HANDSHAKE_TIMEOUT_S)
            return await joining

    (end,) = asyncio.run(scenario())
    assert isinstance(end, RendezvousError) and "does not answer as rank 0 (silent for 4 s)" in str(end)
    assert "choose another MASTER_PORT; or it is busy: wait longer with ?wait=" in str(end)


def test_a_rank_0_that_is_busy_for_longer_than_a_handshake_takes_is_waited_for(monkeypatch):
    """It had connected, as the kernel does that for rank 0, and gave up after 4 s in spite of `?wait=600`.

    It stays on its first connection: rank 0 could admit it there, and the second would be another process's to it.
    """
    calls = []

    async def connect_once(address):
        calls.append(address)
        return await connect_to(address)

    monkeypatch.setattr("transports.tcp.join.rendezvous.connect_to", connect_once)

    async def scenario():
        point = InProcess()
        with await point.listen() as listener:
            joining = asyncio.create_task(gathered(config(1, 2, wait=600.0), point=point))
            await wait_readable(listener)
            await turns()
            pass_time(10 * HANDSHAKE_TIMEOUT_S)
            await turns()
            assert not joining.done()
            zero = await RendezvousHost(identity(0, 2), 20.0).admit_all(listener)
        (one,) = await joining
        for sock, _ in zero.values():
            sock.close()
        return zero, one

    zero, one = asyncio.run(asyncio.wait_for(scenario(), 90))
    assert set(zero) == {1} and set(one) == {0} and len(calls) == 1


async def test_a_rank_0_that_drops_a_handshake_is_called_again():
    """A rank 0 that was busy during a handshake drops it, as it drops the oldest of more than 256."""
    point = InProcess()
    listener = await point.listen()
    joining = asyncio.create_task(gathered(config(1, 2), point=point))
    (await accept(listener)).close()
    zero = await RendezvousHost(identity(0, 2), 20.0).admit_all(listener)
    (one,) = await joining
    for sock, _ in zero.values():
        sock.close()
    assert set(zero) == {1} and set(one) == {0}


async def test_a_rank_that_drops_a_handshake_is_called_again():
    with listen((LOOPBACK, 0)) as busy:
        async with Joining(3) as joining:
            one, two = await joining.seat(1, busy.getsockname()), joining.join(2)
            await read_control(one, "table")
            (await accept(busy)).close()
            with await accept(busy) as sock:
                hello = await run_handshake(sock, accepting(identity(1, 3), lambda hello: Verdict.ACCEPTED))
                await send_control(one, "meshed")
                await read_control(one, "go")
            ((end,),) = await asyncio.gather(two)
            one.close()
    assert hello.rank == 2 and set(end) == {0, 1}


async def test_ranks_that_do_not_connect_with_the_others_in_time_are_named():
    """It was said that "the ranks could not all reach one another", and of the ranks nothing."""
    async with Joining(4) as joining:
        seats = [await joining.seat(rank) for rank in (1, 2, 3)]
        for sock in seats:
            await read_control(sock, "table")
        await send_control(seats[1], "meshed")
        await joining.until_meshed(2)
        pass_time(21.0)
        with pytest.raises(RendezvousError, match=r"ranks 1, 3 .* \(2 of 4, waited: 20 s\).*wait=SECONDS"):
            await read_control(seats[0], "go")
        for sock in seats:
            sock.close()


async def test_a_rank_that_is_busy_after_its_handshake_is_waited_for():
    async with Joining(2) as joining:
        sock, _ = await connect(joining.address, identity(1, 2), 0)
        await turns()
        pass_time(2 * HANDSHAKE_TIMEOUT_S)
        await turns()
        await send_control(sock, "listening", [LOOPBACK, 1])
        await read_control(sock, "table")
        await send_control(sock, "meshed")
        await read_control(sock, "go")
        sock.close()
    assert set(joining.end) == {1}


async def test_a_name_server_that_does_not_reply_now_is_asked_again(monkeypatch):
    asked_hosts = []

    async def lookup(host, port):
        if not asked_hosts:
            asked_hosts.append(host)
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(LOOPBACK, port)]

    monkeypatch.setattr("transports.tcp.join.meeting_points.lookup", lookup)
    async with Joining(2) as joining:
        at = config(1, 2, host="node0", port=joining.address[1])
        (end,) = await gathered(at, point=MasterPort(at))
    assert set(end) == {0} and asked_hosts == ["node0"]


async def test_a_second_process_with_one_rank_is_refused_and_the_job_starts():
    async with Joining(3) as joining:
        one = joining.join(1)
        await joining.until(1)
        sock, _ = await connect(joining.address, identity(1, 3), 0)
        with sock, pytest.raises(RendezvousError, match="two processes claim rank 1"):
            await read_control(sock, "table")
        await asyncio.gather(one, joining.join(2))
    assert set(joining.end) == {1, 2}


def test_a_rank_with_a_wrong_key_ends_at_once_and_the_others_at_their_limit_with_its_number():
    keys = [KEY, KEY, b"another", KEY]
    ends = asyncio.run(gathered(*(config(rank, 4, shared_key=key, wait=0.5) for rank, key in enumerate(keys))))
    assert isinstance(ends[2], AuthenticationError) and "this rank's key is not that of rank 0" in str(ends[2])
    for end in (ends[0], ends[1], ends[3]):
        assert isinstance(end, RendezvousError)
        missing, callers = "missing ranks: 2 (1 of 4, waited: 0.5 s)", "callers that held another key or none: rank 2"
        assert f"{missing}; {callers}; give" in str(end)
        assert "PIPELINED_KEY" in str(end) and "?wait=" in str(end)


@pytest.mark.parametrize("joined", [True, False], ids=["after the rank", "before the rank"])
def test_an_unauthenticated_caller_with_a_ranks_number_is_logged_and_the_ranks_connect(caplog, joined):
    """Where the rank itself came more than 3 s after the stranger, the start had ended."""

    async def open_all():
        async with Joining(3, KEY) as joining:
            one = joining.join(1) if joined else None
            if one:
                await joining.until(1)
            for _ in range(3):
                with pytest.raises(AuthenticationError):
                    await connect(joining.address, identity(1, 3, b"guess"), 0)
            late = asyncio.get_running_loop().time
            asyncio.get_running_loop().time = lambda: late() + 15  # of the 20 s that rank 0 waits
            await asyncio.gather(one or joining.join(1), joining.join(2))
        return joining.end

    assert set(asyncio.run(open_all())) == {1, 2}
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "caller refused: rank 1 holds another key or none"
    ]


def test_callers_with_another_key_are_named_as_unauthenticated():
    async def open_all():
        host = RendezvousHost(identity(0, 3, KEY), 0.3)
        listener = await InProcess().listen()
        gathering = asyncio.create_task(host.admit_all(listener))
        for rank, run in ((2, "none/0"), (1, "none/0"), (1, "another/0")):
            stranger = RankIdentity(rank, 3, digest(run), 1, b"guess")
            with pytest.raises(AuthenticationError):
                await connect(listener.getsockname(), stranger, 0)
        await gathering

    with pytest.raises(
        RendezvousError, match="another key or none: rank 1, rank 2, an unknown caller; give every process"
    ):
        asyncio.run(open_all())


@pytest.mark.parametrize("noise", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(5000), b"PPLN\x01\x00" + b"\xff" * 500])
def test_garbage_from_outsiders_does_not_disturb_the_job(noise):
    async def open_all():
        async with Joining(3) as joining:
            strangers = [await connect_to(joining.address) for _ in range(40)]
            for sock in strangers[:20]:
                sock.send(noise)
            for sock in strangers[:10]:
                sock.close()
            ranks = await asyncio.gather(*map(joining.join, (1, 2)))
            for sock in strangers:
                sock.close()
        return [joining.end, *(end for (end,) in ranks)]

    ends = asyncio.run(asyncio.wait_for(open_all(), 15))
    assert [set(end) for end in ends] == [{1, 2}, {0, 2}, {0, 1}]


async def test_more_idle_connections_than_the_limit_do_not_delay_a_rank(monkeypatch):
    monkeypatch.setattr("transports.stream.acceptor.MAX_PENDING", 8)

    async with asyncio.timeout(HANDSHAKE_TIMEOUT_S / 2), Joining(2) as joining:
        strangers = [await connect_to(joining.address) for _ in range(50)]
        ((end,),) = await asyncio.gather(joining.join(1))
        for sock in strangers:
            sock.close()
    assert set(end) == {0}


async def test_idle_connections_do_not_evict_a_rank_during_its_handshake(monkeypatch):
    monkeypatch.setattr("transports.stream.acceptor.MAX_PENDING", 4)

    async with asyncio.timeout(HANDSHAKE_TIMEOUT_S / 2), Joining(2) as joining:
        sock, dialogue = await connect_to(joining.address), connecting(identity(1, 2), 0)
        sock.send(next(dialogue))
        heard = await read_exactly(sock, next(dialogue))
        strangers = [await connect_to(joining.address) for _ in range(20)]
        with pytest.raises(ConnectionResetError, match="closed the connection"):
            await read_exactly(strangers[0], 1)
        sock.send(dialogue.send(heard))
        verdict = await read_exactly(sock, next(dialogue))
        for connection in (sock, *strangers):
            connection.close()
        await asyncio.gather(joining.join(1))
    assert verdict[0] == Verdict.ACCEPTED


async def test_a_seated_rank_that_leaves_gives_its_number_free():
    async with Joining(3) as joining:
        (await joining.seat(1)).close()
        await joining.until(1, joined=False)
        await asyncio.gather(*map(joining.join, (1, 2)))
    assert set(joining.end) == {1, 2}


def test_a_rank_that_leaves_while_the_others_mesh_is_named_to_them():
    async def open_all():
        async with Joining(3) as joining:
            with socket.create_server((LOOPBACK, 0)) as silent:
                sock = await joining.seat(1, silent.getsockname())
                two = joining.join(2)
                await read_control(sock, "table")
                sock.close()
                ((end,),) = await asyncio.gather(two)
        return joining.end, end

    for end in asyncio.run(asyncio.wait_for(open_all(), 5)):
        assert isinstance(end, RendezvousError) and "rank 1 left during the rendezvous" in str(end)


@pytest.mark.parametrize("content", [["elsewhere", 5], [LOOPBACK, 0], [LOOPBACK, 1 << 16], [LOOPBACK], 7, None, [1, 2]])
async def test_an_invalid_listening_address_is_refused(content):
    async with Joining(2) as joining:
        sock, _ = await connect(joining.address, identity(1, 2), 0)
        with sock:
            await send_control(sock, "listening", content)
            assert not await asyncio.get_running_loop().sock_recv(sock, 1)
        await joining.join(1)
    assert set(joining.end) == {1}


@pytest.mark.parametrize("length", [0, CONTROL_BYTES + 1, 2**32 - 1])
async def test_an_oversized_control_message_is_refused_before_it_is_read(length):
    here, there = socket.socketpair()
    with here, there:
        for sock in (here, there):
            sock.setblocking(False)
        here.send(LENGTH.pack(length))
        with pytest.raises(WireError, match=str(length)):
            await read_control(there, "listening")


@pytest.mark.parametrize(
    "table", [None, [], [[1, LOOPBACK, 5]], [[1, LOOPBACK, 0, 9]], [[2, LOOPBACK, 5, 9]], [[1, "here", 5, 9]], {1: 2}]
)
def test_an_invalid_table_is_refused(table):
    with pytest.raises(WireError):
        read_table(table, config(1, 2))


def test_without_a_key_no_rank_leaves_loopback():
    for at in ("10.0.0.1", "::ffff:10.0.0.1", "192.0.2.7"):
        with pytest.raises(RendezvousError, match="PIPELINED_KEY or PIPELINED_KEY_FILE"):
            checked_address((at, 5), config(0, 2))
        with pytest.raises(RendezvousError, match="without a shared key"):
            read_table([[1, at, 5, 9]], config(1, 2))
        assert checked_address((at, 5), config(0, 2, shared_key=KEY)) == (at, 5)
    (end,) = asyncio.run(gathered(at := config(0, 2, host="192.0.2.7"), point=MasterPort(at)))
    assert isinstance(end, RendezvousError) and "without a shared key" in str(end)


def test_ranks_that_some_machines_cannot_reach_are_refused():
    check_reach([(LOOPBACK, 1), ("127.0.1.1", 2)])
    check_reach([("10.0.0.1", 1), ("10.0.0.2", 2)])
    with pytest.raises(RendezvousError, match="set MASTER_ADDR"):
        check_reach([(LOOPBACK, 1), ("10.0.0.2", 2)])
