"""Bytes that no endpoint says: each costs its own connection, a name in a counter, and next to no memory."""

import asyncio
import socket
import struct
from contextlib import suppress

import msgpack
import pytest

from tests.unit.transports.rpc.tcp.hostile import (
    MEBI,
    forged,
    intruder,
    long_question,
    opened,
    request,
    resident,
    until_lost,
)
from transports.rpc.frames import RpcKind as Kind
from transports.rpc.tcp.identity import parse_address
from transports.stream.sockets import connect_to, read_exactly
from transports.tcp.peer import TcpKind
from transports.wire.arrays import Block
from transports.wire.frames import MAGIC, VERSION, encode, encode_bare


def asked(layouts):
    """The header of a request with these arrays."""
    return msgpack.packb([[0, "echo"], None, layouts])


def deep(levels):
    return b"\x93\x92\x00\xa4echo" + b"\x91" * levels + b"\xc0\x90"


def frame(kind, key, *arrays, note=None):
    return b"".join(encode(kind, key, [Block.of(array) for array in arrays], note))


def part(stream, nbytes):
    return encode_bare(Kind.PART, stream, nbytes) + bytes(nbytes)


UNSENT = "unexpected kind of frame"
HOSTILE = {
    "nothing of ours": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "not a frame"),
    "another version": (struct.pack("!4sBBHIQ", MAGIC, VERSION + 1, 11, 0, 0, 0), "frame of another version"),
    "unknown kind": (forged(99), "unknown kind of frame"),
    "a rank's frame": (frame(TcpKind.MESSAGE, ("x",)), "unknown kind of frame"),
    "huge header": (forged(Kind.REQUEST, header_bytes=2**32 - 1), "too many header bytes"),
    "huge body": (forged(Kind.REQUEST, b"", 2**64 - 1), "too many body bytes"),
    "body beyond the blocks": (forged(Kind.REQUEST, asked([]), 8), "blocks do not fill the body"),
    "too many blocks": (forged(Kind.REQUEST, asked([["uint8", [0]]] * 65)), "too many blocks"),
    "unknown dtype": (forged(Kind.REQUEST, asked([["evil(1)", [1]]]), 1), "unknown dtype"),
    "a dtype that is a number": (forged(Kind.REQUEST, asked([[7, [1]]]), 1), "unknown dtype"),
    "negative shape": (forged(Kind.REQUEST, asked([["uint8", [-1]]])), "a shape may hold only sizes from 0 up"),
    "deep nesting": (forged(Kind.REQUEST, deep(50_000)), "header is not msgpack"),
    "no msgpack": (forged(Kind.REQUEST, b"\xc1" * 40), "header is not msgpack"),
    "a key of another form": (frame(Kind.REQUEST, ("echo", 0)), UNSENT),
    "a key of one item": (frame(Kind.REQUEST, (0,)), UNSENT),
    "a replayed request": (2 * request(0, b"abc"), "a repeated request number"),
    "a number below the last": (request(5) + request(4), "a repeated request number"),
    "an answer to nothing": (frame(Kind.RESPONSE, (0,)), "a response to no request"),
    "a rejection without names": (frame(Kind.REJECTED, (0, "no"), note={1: 2}), "facts of a rejection without names"),
    "a rejection with a body": (frame(Kind.REJECTED, (0, "no"), b"x"), UNSENT),
    "a part of nothing": (part(3, 8), "a part of nothing"),
    "a part beyond its body": (
        long_question(0, 100, 3) + part(3, 101),
        "a part beyond its body",
    ),
    "two bodies in one stream": (long_question(0, 9, 3) + long_question(1, 9, 3), "invalid start of a body in parts"),
    "parts of no bytes": (request(0, stream=3), "invalid start of a body in parts"),
    "a header on a part": (forged(Kind.PART, b"\xc0", 0, 3), "a PART with a header"),
    "cut short in a preamble": (request(0)[:11], "a frame cut short"),
    "cut short in a header": (request(0)[:25], "a frame cut short"),
    "cut short in a body": (request(0, bytes(MEBI))[:-1], "a frame cut short"),
}


@pytest.mark.parametrize("case", HOSTILE)
async def test_hostile_bytes_cost_their_connection_and_are_counted_by_name(case):
    stream, name = HOSTILE[case]

    async with opened(2) as (here, other):
        held = asyncio.create_task(other.request(here.address, "never"))
        lost = []
        here.add_lost_callback(lost.append)
        sock = await intruder(here)
        await asyncio.get_running_loop().sock_sendall(sock, stream)
        if name == "a frame cut short":
            sock.shutdown(socket.SHUT_WR)
        await until_lost(sock)
        assert here.invalid_input == {name: 1}
        assert lost == [("tcp://127.0.0.1:9", 77)]
        assert (await other.request(here.address, "echo", note="still here")).note == "still here"
        assert not held.done() and not here.failed.done()
        held.cancel()


@pytest.mark.parametrize(
    ("spoken", "name"),
    [
        (b"GET / HTTP/1.1\r\n" + bytes(200), "not a hello of this program"),
        (b"", "closed during the handshake"),
        (b"PPLN\x02", "closed during the handshake"),
    ],
)
async def test_an_unauthenticated_caller_is_refused_and_counted_by_name(spoken, name):
    async with opened() as here:
        sock = await connect_to(parse_address(here.address))
        await asyncio.get_running_loop().sock_sendall(sock, spoken)
        sock.shutdown(socket.SHUT_WR)
        await until_lost(sock)
        assert here.invalid_input == {name: 1}


async def test_a_requester_that_never_reads_is_disconnected():
    async with opened() as here:
        sock = await intruder(here)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        number = 0
        with suppress(ConnectionError):
            while not here.invalid_input:
                stream = b"".join(request(number + n, topic="x" * 60) for n in range(1000))
                number += 1000
                await asyncio.get_running_loop().sock_sendall(sock, stream)
        sock.close()
        assert here.invalid_input == {"replies that it does not read": 1}


async def test_announced_bodies_take_no_memory_before_they_come():
    async with opened() as here:
        sock, before = await intruder(here), resident()
        heads = [long_question(n, 1 << 28, n + 1) for n in range(1000)]
        await asyncio.get_running_loop().sock_sendall(sock, b"".join(heads))
        rejections = b""
        while rejections.count(b"busy") < 1000 - 3:  # 3 of 256 MiB are let in
            rejections += await asyncio.get_running_loop().sock_recv(sock, MEBI)
        assert resident() - before < 16 * MEBI
        sock.close()


async def test_cancelled_and_refused_bodies_give_their_memory_back():
    async with opened() as here:
        sock, before = await intruder(here), resident()
        for n in range(100):
            stream = long_question(n, 8 * MEBI, n + 1) + 3 * part(n + 1, MEBI) + b"".join(encode(Kind.CANCEL, (n,)))
            await asyncio.get_running_loop().sock_sendall(sock, stream)
        await asyncio.get_running_loop().sock_sendall(sock, request(1000))
        await read_exactly(sock, 20)
        assert resident() - before < 48 * MEBI
        sock.close()
