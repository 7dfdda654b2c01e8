"""Endpoints over TCP, an intruder that holds their key, and frames that our own encoder would not write."""

import asyncio
import struct
from contextlib import asynccontextmanager, suppress

import msgpack

from transports.rpc import Response
from transports.rpc.frames import RpcKind as Kind
from transports.rpc.tcp.endpoint import open_at
from transports.rpc.tcp.identity import PartyIdentity, connect
from transports.wire.arrays import Block
from transports.wire.frames import MAGIC, VERSION, encode

KEY = b"one key for all"
LOOPBACK = ("127.0.0.1", 0)
MEBI = 1 << 20


def run(scenario):
    async def in_time():
        async with asyncio.timeout(30):
            return await scenario

    return asyncio.run(in_time())


async def echo(request):
    return Response(request.blocks, request.note)


async def never(request):
    await asyncio.Future()


@asynccontextmanager
async def opened(count=1, key=KEY, **options):
    ends = [await open_at(LOOPBACK, key, **options) for _ in range(count)]
    for end in ends:
        end.handle("echo", echo, max_bytes=MEBI)
        end.handle("never", never, max_bytes=1 << 40, max_waiting=1 << 20)
    try:
        yield ends[0] if count == 1 else ends
    finally:
        for end in ends:
            await end.close()


async def until_lost(sock):
    """Read until the other side hangs up."""
    loop = asyncio.get_running_loop()
    with suppress(ConnectionError):
        while await loop.sock_recv(sock, MEBI):
            pass
    sock.close()


async def intruder(end, key=KEY):
    """A socket of an admitted party, for bytes of the test."""
    sock, peer = await connect(end.address, PartyIdentity(("127.0.0.1", 9), 77, key))
    assert peer == (end.address, end.incarnation)
    return sock


def forged(kind, header=b"", body_bytes=0, number=0, header_bytes=None):
    """A frame as our own encoder would not write it."""
    announced = len(header) if header_bytes is None else header_bytes
    return struct.pack("!4sBBHIQ", MAGIC, VERSION, kind, number, announced, body_bytes) + header


def deep(levels):
    return b"\x93\x92\x00\xa4echo" + b"\x91" * levels + b"\xc0\x90"


def request(number, *arrays, topic="echo", stream=0, **more):
    blocks = [Block.of(array) for array in arrays]
    return b"".join(encode(Kind.REQUEST, (number, topic), blocks, number=stream, **more))


def long_question(number, nbytes, stream, topic="never"):
    """The head of a request with a body that follows in parts."""
    header = msgpack.packb([[number, topic], None, [["uint8", [nbytes]]]])
    return forged(Kind.REQUEST, header, nbytes, stream)


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
