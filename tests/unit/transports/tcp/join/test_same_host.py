"""Ranks of one machine connect over Unix sockets where they can, else over TCP, and admit no other process."""

import asyncio
import errno
import socket

import numpy as np
import pytest

from collectives import Group, all_reduce
from tests.conformance.worlds import kill, tcp_world
from transports import PeerLost, RendezvousError, WireError
from transports.shm.cores import MASK_BYTES
from transports.stream.sockets import make_nonblocking, wait_readable
from transports.tcp.join import same_host
from transports.tcp.join.config import TcpConfig
from transports.tcp.join.control import read_control, send_control
from transports.tcp.join.rendezvous import PeerSockets
from transports.tcp.join.same_host import (
    NONCE_BYTES,
    connect_unix,
    count_cores_together,
    open_listener,
    upgrade_local_peers,
    upgrade_to_unix,
)

UNIX, INET = socket.AF_UNIX, socket.AF_INET


def run(scenario):
    async def in_time():
        async with asyncio.timeout(20):
            return await scenario

    return asyncio.run(in_time())


def families(end):
    return {peer: peers.connection._sock.family for peer, peers in end._peers._peers.items()}


async def talk(machines):
    """The sockets between ranks of these machines, over which an all-reduce and a large message go."""
    ends = await tcp_world(len(machines), machines=machines, unix=True)
    arrays = [np.full(100_000, 1.0 + end.rank) for end in ends]
    groups = [Group(end, range(len(ends)), 3) for end in ends]
    await asyncio.gather(*map(all_reduce, groups, arrays))
    assert all((array == sum(range(1, len(ends) + 1))).all() for array in arrays)
    body = np.arange(1 << 20)
    sent = asyncio.ensure_future(ends[0].send(1, ("k",), body))
    assert ((await ends[1].receive(0, ("k",))).blocks[0].numpy() == body).all()
    await sent
    sockets = [families(end) for end in ends]
    await asyncio.gather(*(end.close() for end in ends))
    return sockets


def test_ranks_of_one_machine_talk_over_unix_sockets_and_others_over_tcp():
    sockets = run(talk("aab"))
    assert sockets == [{1: UNIX, 2: INET}, {0: UNIX, 2: INET}, {0: INET, 1: INET}]


def test_where_there_are_no_such_names_all_stay_with_tcp(monkeypatch):
    monkeypatch.setattr(same_host, "open_listener", lambda name: None)
    assert run(talk("aaa")) == [{1: INET, 2: INET}, {0: INET, 2: INET}, {0: INET, 1: INET}]


def out_of_files(*_):
    raise OSError(errno.EMFILE, "Too many open files")


def test_without_a_free_descriptor_there_is_no_listener(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(same_host.socket, "socket", out_of_files)
        listener = open_listener("\0without-a-descriptor")
    assert listener is None


def test_without_an_answer_under_the_name_both_ranks_keep_tcp(monkeypatch):
    """As in containers that share a machine's name and no names of sockets."""
    monkeypatch.setattr(same_host, "open_listener", lambda name: open_listener(name + "elsewhere"))
    assert run(talk("aa")) == [{1: INET}, {0: INET}]


async def test_a_rank_that_dies_is_lost_over_a_unix_socket_too():
    here, there = await tcp_world(2, unix=True)
    waiting = asyncio.ensure_future(here.receive(1, ("k",)))
    await asyncio.sleep(0)
    kill(there)
    with pytest.raises(PeerLost, match="rank 1"):
        await waiting
    await here.close()


@pytest.mark.parametrize("stranger", ["says another nonce", "hangs up", "is another user"])
async def test_an_unauthenticated_caller_that_connects_first_is_refused(stranger, monkeypatch):
    met = list(map(make_nonblocking, socket.socketpair()))
    called = []

    def first_a_stranger(told):
        intruder = socket.socket(UNIX, socket.SOCK_STREAM)
        intruder.setblocking(False)
        intruder.connect(told[0])
        called.append(intruder)
        if stranger == "hangs up":
            intruder.close()
        elif stranger == "says another nonce":
            intruder.sendall(bytes(NONCE_BYTES))
        return connect_unix(told)

    answers = iter([True, stranger != "is another user", True])
    monkeypatch.setattr(same_host, "same_user", lambda sock: next(answers))
    monkeypatch.setattr(same_host, "connect_unix", first_a_stranger)
    ours, theirs = await asyncio.gather(upgrade_to_unix(0, {1: met[0]}), upgrade_to_unix(1, {0: met[1]}))
    ours[1].sendall(b"hello")
    await wait_readable(theirs[0])
    assert theirs[0].recv(9) == b"hello"
    for sock in (ours[1], theirs[0], *called):
        sock.close()


def test_where_users_are_numbered_otherwise_both_stay_with_tcp(monkeypatch):
    namespaces = iter(["user:[1]", "user:[2]"])
    monkeypatch.setattr(same_host, "user_namespace", lambda: next(namespaces))
    assert run(talk("aa")) == [{1: INET}, {0: INET}]


NONCE = bytes(NONCE_BYTES)


@pytest.mark.parametrize("told", ["", 7, [], ["name", NONCE, ""], ["\0name", b"short", ""], ["\0name", NONCE, 5]])
def test_a_control_message_that_names_no_socket_is_refused(told):
    with pytest.raises(WireError, match="invalid offer of a Unix socket"):
        connect_unix(told)


def test_a_rank_without_a_descriptor_for_an_offer_keeps_tcp(monkeypatch):
    """That ended its job, while the rank that offers went on without a listener."""
    offer = ["\0without-a-descriptor", NONCE, same_host.user_namespace()]
    with monkeypatch.context() as patch:
        patch.setattr(same_host.socket, "socket", out_of_files)
        assert connect_unix(offer) is None


def test_a_silent_rank_is_reported_with_the_seconds_waited():
    async def main():
        here, there = map(make_nonblocking, socket.socketpair())
        config, peers = TcpConfig(0, 2, "127.0.0.1", 0, wait=0.0), PeerSockets.__new__(PeerSockets)
        peers[1], peers.machines = here, {0: b"m", 1: b"m"}
        with here, there:
            await upgrade_local_peers(config, peers)

    with pytest.raises(RendezvousError, match=r"during start-up \(no reply within 0 s\)"):
        run(main())


async def answer(sock, words):
    heard = await read_control(sock, "cores")
    if words is None:
        sock.close()
    else:
        await send_control(sock, *words)
    return heard


def together(monkeypatch, own, *said):
    """What a rank bound to its own cores counts beside neighbours that say these."""
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(own))

    async def main():
        pairs = [tuple(map(make_nonblocking, socket.socketpair())) for _ in said]
        counting = count_cores_together([here for here, _ in pairs])
        answers = (answer(there, words) for (_, there), words in zip(pairs, said, strict=True))
        try:
            count, *heard = await asyncio.gather(counting, *answers)
            return count, heard
        finally:
            for sock in (sock for pair in pairs for sock in pair):
                sock.close()

    return asyncio.run(main())


def mask(*cores):
    return sum(1 << core for core in cores).to_bytes(MASK_BYTES, "little")


def test_a_core_that_several_ranks_may_run_on_counts_once(monkeypatch):
    assert together(monkeypatch, {3}, ("cores", mask(4)), ("cores", mask(3, 5))) == (3, [mask(3), mask(3)])


def test_ranks_bound_to_one_core_share_it(monkeypatch):
    assert together(monkeypatch, {0}, ("cores", mask(0)), ("cores", mask(0)))[0] == 1


def test_alone_on_its_machine_a_rank_has_its_own(monkeypatch):
    assert together(monkeypatch, {0, 1, 7}) == (3, [])


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (("cores", [0]), "invalid mask of cores"),
        (("cores", bytes(MASK_BYTES - 1)), "invalid mask of cores"),
        (("cores", "0" * MASK_BYTES), "invalid mask of cores"),
        (("go", None), "an unexpected control message"),
        (("cores", bytes(4 * MASK_BYTES)), "a control message beyond the limit"),
        (None, "closed the connection"),
    ],
)
def test_a_neighbour_that_leaves_or_sends_an_invalid_mask_is_refused(monkeypatch, said, why):
    with pytest.raises((WireError, OSError)) as failed:
        together(monkeypatch, {0}, said)
    assert why in str(failed.value)
