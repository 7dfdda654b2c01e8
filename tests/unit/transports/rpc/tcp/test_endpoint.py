"""An endpoint's own rules over TCP: the parties it admits, its address, and short frames that pass long ones."""

import asyncio
import signal
import socket
import struct
import sys
from contextlib import suppress

import numpy as np
import pytest

from tests.unit.transports.rpc.tcp.hostile import (
    KEY,
    MEBI,
    echo,
    intruder,
    opened,
    request,
    resident,
    run,
    until_lost,
)
from tests.unit.transports.tcp.idle import limits_when_idle
from transports import AuthenticationError, RendezvousError
from transports.emulation.options import LinkProfile
from transports.rpc import Response, Unreachable, open_endpoint
from transports.rpc.frames import RpcKind as Kind
from transports.rpc.tcp.connection import TcpConnection
from transports.rpc.tcp.endpoint import open_at
from transports.rpc.tcp.identity import parse_address
from transports.stream.acceptor import run_handshake
from transports.stream.handshake import connecting
from transports.stream.sockets import KEEPALIVE, connect_to
from transports.tcp.join.identity import RankIdentity, digest
from transports.wire.frames import encode_bare


@pytest.mark.parametrize("key", [b"", b"another key"])
async def test_another_key_or_none_is_refused(key):
    async with opened() as here, opened(key=key) as other:
        lost = []
        here.add_lost_callback(lost.append)
        with pytest.raises(
            Unreachable, match="another key, or none; give every process the same PIPELINED_KEY"
        ) as seen:
            await other.request(here.address, "echo")
        assert not seen.value.sent and seen.value.wrong_key
        assert here.invalid_input == {"wrong key": 1} and not lost


async def test_an_error_inside_the_acceptor_is_reported_and_accepting_continues(monkeypatch):
    async with opened() as here, opened() as third:
        monkeypatch.setattr(here.connections, "identify", lambda connection, peer: 1 / 0)
        sock = await intruder(here)
        with pytest.raises(ZeroDivisionError):
            await here.failed
        await until_lost(sock)
        monkeypatch.undo()
        assert (await third.request(here.address, "echo", note="third")).note == "third"


def take(sock, nbytes=MEBI):
    with suppress(BlockingIOError):
        sock.recv(nbytes)


async def test_a_request_progresses_with_the_bytes_that_a_slow_party_takes_and_not_while_it_takes_none():
    async with opened() as here, opened() as there, asyncio.timeout(20):
        assert here.activity_with(there.address) == 0
        await here.request(there.address, "echo")
        (mine,), (theirs,) = here.connections, there.connections
        sock, unwritten = theirs._writer._sock, mine._scheduler._items
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MEBI // 16)
        asyncio.get_running_loop().remove_reader(sock)
        asking = asyncio.create_task(here.request(there.address, "never", np.zeros(16 * MEBI, np.uint8)))
        same = 0
        while same < 100:  # until the kernels are full
            stuck = here.activity_with(there.address)
            await asyncio.sleep(0)
            same = same + 1 if here.activity_with(there.address) == stuck else 0
        assert 0 < stuck < 16 * MEBI
        while unwritten:  # its last bytes, too, when this end's kernel has all of them
            take(sock, MEBI // 128)
            await asyncio.sleep(0)
        written = here.activity_with(there.address)
        assert written > stuck
        while here.activity_with(there.address) == written:
            take(sock)
            await asyncio.sleep(0)
        asking.cancel()


@pytest.mark.parametrize("slow", [{"rate": 1e3}, {"line": 1e3}])
async def test_a_request_progresses_while_it_is_on_an_emulated_slow_link(slow):
    """Its one frame takes a minute: no byte of it reaches the socket before."""
    async with opened(profile=LinkProfile(**slow)) as here, opened() as there, asyncio.timeout(20):
        asking = asyncio.create_task(here.request(there.address, "never", np.zeros(MEBI // 16, np.uint8)))
        values = set()
        while len(values) < 4:
            values.add(here.activity_with(there.address))
            await asyncio.sleep(0)
        asking.cancel()


async def test_the_kernel_examines_every_connection_of_endpoints_that_is_idle(monkeypatch):
    seen, on_connected = [], TcpConnection.on_connected

    def look(self, sock, peer):
        seen.append(limits_when_idle(sock))
        on_connected(self, sock, peer)

    monkeypatch.setattr(TcpConnection, "on_connected", look)
    async with opened() as here, opened() as other:
        await other.request(here.address, "echo")
    assert seen == 2 * [(1, *KEEPALIVE)]


async def test_a_rank_that_connects_is_refused():
    async with opened() as here:
        sock = await connect_to(parse_address(here.address))
        with pytest.raises(ConnectionError):
            await run_handshake(sock, connecting(RankIdentity(1, 2, digest("run"), 5, KEY), 0))
        sock.close()
        assert here.invalid_input == {"not a hello of this program": 1}


async def test_what_listens_and_is_no_endpoint_is_unreachable():
    async def hang_up(reader, writer):
        writer.write(b"220 mail.example ready\r\n" + bytes(200))
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with opened() as here, server:
        with pytest.raises(Unreachable, match=r"another program answers|closed the connection|reset") as seen:
            await here.request(f"tcp://127.0.0.1:{port}", "echo")
        assert not seen.value.sent and not seen.value.wrong_key


def is_full(listener):
    """Whether more connections lie in a listener's queue than it takes; Linux tells both numbers in TCP_INFO."""
    queued, most = struct.unpack_from("=II", listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32), 24)
    return queued > most


async def test_a_machine_that_does_not_answer_a_call_is_unreachable_within_the_limit(monkeypatch):
    """A listener with a full queue drops calls in silence, as a machine without power does."""
    monkeypatch.setattr("transports.stream.sockets.CONNECT_S", 0.1)

    with socket.socket() as full, socket.socket() as caller:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        caller.connect(full.getsockname())
        while not is_full(full):  # noqa: ASYNC110 (the kernel has nothing to wait on)
            await asyncio.sleep(0)
        async with opened() as here:
            with pytest.raises(Unreachable, match="Connection timed out") as seen:
                await here.request(f"tcp://127.0.0.1:{full.getsockname()[1]}", "echo")
            assert not seen.value.sent


async def test_without_a_key_nothing_leaves_this_machine(monkeypatch):
    monkeypatch.delenv("PIPELINED_KEY", raising=False)
    with pytest.raises(AuthenticationError, match=r"192\.0\.2\.1 .*PIPELINED_KEY"):
        await open_endpoint("tcp://192.0.2.1:0")
    async with await open_endpoint("tcp://localhost:0") as here:
        assert here.address.startswith("tcp://127.0.0.1:")
        with pytest.raises(Unreachable, match="no key is shared") as seen:
            await here.request("tcp://192.0.2.1:29500", "echo")
        assert seen.value.wrong_key


async def test_the_key_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("PIPELINED_KEY", "from outside")
    async with await open_endpoint("tcp://127.0.0.1:0") as here, opened(key=b"from outside") as other:
        here.handle("echo", echo)
        assert (await other.request(here.address, "echo", note=1)).note == 1


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("udp://127.0.0.1:0", "unknown endpoint.*known: tcp://$"),
        ("tcp://", "write tcp://HOST:PORT"),
        ("tcp://127.0.0.1:0/path", "write tcp://HOST:PORT"),
        (
            "tcp://127.0.0.1:0?speed=1",
            r"unknown option in the tcp:// URL \(got: speed; known: listen, delay.*, seed, line\)",
        ),
        ("tcp://127.0.0.1:0?delay=fast", "takes a number"),
        ("tcp://127.0.0.1:0?line=fast", "takes a number"),
        ("tcp://127.0.0.1:0?delay=1ms&node=4", r"no rank, so no node \(node: 4\)"),
        ("tcp://127.0.0.1:0?listen=nowhere", r"\?listen= takes HOST:PORT \(got: 'nowhere'\)"),
        ("virtual://name", "unknown endpoint.*known: tcp://$"),
    ],
)
def test_an_invalid_url_is_refused(url, words):
    with pytest.raises(ValueError, match=words):
        run(open_endpoint(url))


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_an_address_that_no_machine_can_connect_to_is_refused(host, monkeypatch):
    monkeypatch.setenv("PIPELINED_KEY", "key")
    with pytest.raises(RendezvousError, match="name the one"):
        run(open_endpoint(f"tcp://{host}:0"))


async def test_a_party_behind_a_router_is_known_by_its_public_address():
    """As behind a router that passes a port on, which a relay of bytes does here."""

    async def relay(reader, writer):
        onward, back = await asyncio.open_connection("127.0.0.1", behind)
        async with asyncio.TaskGroup() as group:
            group.create_task(pump(reader, back))
            group.create_task(pump(onward, writer))

    async def pump(reader, writer):
        while data := await reader.read(MEBI):
            writer.write(data)
        writer.close()

    relayed = await asyncio.start_server(relay, "127.0.0.1", 0)
    behind = free_port()
    place = relayed.sockets[0].getsockname()
    async with relayed, opened() as other, await open_at(place, KEY, bind_address=("127.0.0.1", behind)) as here:
        here.handle("echo", echo)
        assert parse_address(here.address) == place
        assert (await other.request(here.address, "echo", note="through")).note == "through"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_without_a_key_an_endpoint_listens_on_loopback_only(monkeypatch):
    monkeypatch.delenv("PIPELINED_KEY", raising=False)
    with pytest.raises(AuthenticationError, match="no key is shared"):
        run(open_endpoint("tcp://127.0.0.1:29500?listen=0.0.0.0:29500"))


async def test_a_port_that_is_taken_is_named():
    async with opened() as here:
        with pytest.raises(RendezvousError, match=f"in use.*{parse_address(here.address)[1]}"):
            await open_at(parse_address(here.address), KEY)


async def test_an_endpoint_may_listen_over_ipv6():
    here = await open_at(("::1", 0), KEY)
    here.handle("echo", echo)
    async with here, opened() as other:
        assert here.address.startswith("tcp://[::1]:")
        assert (await other.request(here.address, "echo", note=6)).note == 6


async def test_a_large_request_delays_no_other():
    async with opened(2) as (here, peer):
        peer.handle("bulk", echo, max_bytes=1 << 30)
        order = []

        async def ask(name, *arrays):
            await here.request(peer.address, name, *arrays)
            order.append(name)

        await ask("echo")
        data = np.zeros(32 * MEBI, np.uint8)
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(ask("bulk", data))
            for _ in range(20):
                group.create_task(ask("echo"))
        assert order == ["echo"] * 21 + ["bulk"] * 2


async def test_bodies_are_neither_copied_out_nor_in():
    """As much memory is taken for an array of 32 MiB as the receiver of each copy must have."""

    async with opened(2) as (here, peer):
        blocks = []

        async def keep(request):
            blocks.append(request.blocks[0])
            return Response()

        peer.handle("keep", keep, max_bytes=1 << 30)
        data = np.ones(32 * MEBI, np.uint8)
        before = resident()
        await here.request(peer.address, "keep", data)
        assert resident() - before < 32 * MEBI + 16 * MEBI
        assert np.array_equal(blocks[0].numpy(), data)


async def test_a_party_called_by_a_host_name_is_known_by_its_numeric_address():
    async with opened(2) as (here, peer):
        lost = []
        here.add_lost_callback(lost.append)
        for address in (peer.address.replace("127.0.0.1", "localhost"), peer.address):
            assert (await here.request(address, "echo", note=address)).note == address
        await peer.close()
        with pytest.raises(Unreachable):
            await here.request(peer.address, "echo")
        assert lost == [(peer.address, peer.incarnation)]  # both names led over one connection


async def test_links_are_as_slow_as_their_url_states():
    loop = asyncio.get_running_loop()
    async with await open_endpoint("tcp://127.0.0.1:0?delay=30ms&rate=80mbit") as here, opened(key=b"") as peer:
        await here.request(peer.address, "echo")
        began = loop.time()
        response = await here.request(peer.address, "echo", bytes(MEBI))
        duration = loop.time() - began
        assert response.blocks[0].nbytes == MEBI
        assert duration >= 0.03 + MEBI / 10e6  # only what leaves `here` is slow


async def test_all_that_an_endpoint_sends_passes_its_line():
    loop = asyncio.get_running_loop()
    async with await open_endpoint("tcp://127.0.0.1:0?line=80mbit") as here, opened(3, key=b"") as peers:
        began = loop.time()
        await asyncio.gather(*(here.request(peer.address, "echo", bytes(MEBI)) for peer in peers))
        assert loop.time() - began >= 3 * MEBI / 10e6


async def test_all_that_an_endpoint_receives_passes_its_line():
    loop = asyncio.get_running_loop()
    async with await open_endpoint("tcp://127.0.0.1:0?line=80mbit") as here, opened(3, key=b"") as peers:
        here.handle("take", taken, max_bytes=MEBI)
        began = loop.time()
        await asyncio.gather(*(peer.request(here.address, "take", bytes(MEBI)) for peer in peers))
        assert loop.time() - began >= 2 * MEBI / 10e6  # the first one came at the line's rate, for all that is known


async def taken(request):
    return Response()


async def test_a_party_that_hangs_up_while_it_is_called_is_unreachable_and_the_next_call_reaches_it():
    async with opened() as here:
        async with opened() as peer:
            address = peer.address
            assert (await here.request(address, "echo", note=1)).note == 1
        with pytest.raises(Unreachable):
            await here.request(address, "echo")
        async with await open_at(parse_address(address), KEY) as again:
            again.handle("echo", echo)
            assert (await here.request(address, "echo", note=2)).note == 2


async def test_a_request_to_a_party_that_does_not_read_can_be_cancelled():
    async with opened() as here:
        sock = await intruder(here)
        data = np.ones(32 * MEBI, np.uint8)
        asked = asyncio.create_task(here.request("tcp://127.0.0.1:9", "anything", data))
        short = asyncio.create_task(here.request("tcp://127.0.0.1:9", "other", note=1))
        await asyncio.sleep(0)
        for task in (asked, short):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        data[:] = 0
        came = await read_until(sock, encode_bare(Kind.PART, 1, 0))
        assert came.count(b"\1" * 1024) > 0 and came.count(b"\0" * 1024) == 0
        sock.close()


async def read_until(sock, last):
    """All bytes up to these ones."""
    came = b""
    while last not in came:
        came += await asyncio.get_running_loop().sock_recv(sock, MEBI)
    return came


async def test_unread_responses_keep_their_slots():
    async with opened() as here:
        answers = []

        async def much(request):
            answers.append(request.note)
            return Response([np.zeros(16 * MEBI, np.uint8)])

        here.handle("much", much, max_waiting=3)
        sock = await intruder(here)
        asks = [request(n, topic="much", note=n) for n in range(10)]
        await asyncio.get_running_loop().sock_sendall(sock, b"".join(asks))
        came = await read_until(sock, b"busy")
        assert answers == [0, 1, 2] and len(came) < 32 * MEBI
        sock.close()


CHILD = """
import asyncio
import signal
import socket
import sys
from transports.rpc import open_endpoint

async def main():
    async with await open_endpoint("tcp://127.0.0.1:0") as end:
        async def hold(request):
            print("held", flush=True)
            await asyncio.Future()
        end.handle("hold", hold, max_bytes=1 << 30)
        print(end.address, flush=True)
        await end.failed

asyncio.run(main())
"""


async def test_requests_to_a_killed_process_end_and_to_a_stopped_one_can_be_cancelled(monkeypatch):
    monkeypatch.delenv("PIPELINED_KEY", raising=False)
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", CHILD, stdout=asyncio.subprocess.PIPE)
    address = (await child.stdout.readline()).decode().strip()
    async with await open_endpoint("tcp://127.0.0.1:0") as here:
        held = asyncio.create_task(here.request(address, "hold"))
        assert await child.stdout.readline() == b"held\n"
        child.send_signal(signal.SIGSTOP)
        stopped = asyncio.create_task(here.request(address, "hold", bytes(32 * MEBI)))
        await asyncio.sleep(0)
        stopped.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopped
        child.kill()
        with pytest.raises(Unreachable) as seen:
            await held
        assert seen.value.sent
        await child.wait()
