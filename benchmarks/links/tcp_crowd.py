"""Many peers with many messages in flight each, all to one rank: a rank of `python -m benchmarks.tcp`.

One process is the rank in the middle, the other one holds all the peers, each an end of its own with a connection of
its own. Every reply is compared, so a lost, reordered or altered message ends the run.
"""

import asyncio
import socket
import sys

import numpy as np

from benchmarks.harness.ranks import Task, run
from transports import Transport, open_transport
from transports.stream.sockets import set_options
from transports.tcp.flow_control import credit_limit
from transports.tcp.transport import TcpTransport

LAST = -1


async def measure(task: Task) -> list[int]:
    """How many messages of each peer were answered; rank 0's answer is whole."""
    async with await open_transport("tcp://") as pair:
        ends = await connected(pair, task["peers"])
        try:
            work = answering(ends[0], task) if pair.rank == 0 else asking(ends, task)
            return await work
        finally:
            await asyncio.gather(*(end.close() for end in ends))


async def connected(pair: Transport, peers: int) -> list[TcpTransport]:
    """The end in the middle, rank 0 of peers + 1, or the ends of all the others."""
    if pair.rank == 0:
        with socket.create_server(("127.0.0.1", 0), backlog=peers) as listener:
            await pair.send(1, ("port",), note=listener.getsockname()[1])
            socks = {rank: ready(listener.accept()[0]) for rank in range(1, peers + 1)}
        return [TcpTransport(0, peers + 1, socks, max_kept=credit_limit(peers + 1))]
    port = (await pair.receive(0, ("port",))).note
    socks = {rank: ready(socket.create_connection(("127.0.0.1", port))) for rank in range(1, peers + 1)}
    return [TcpTransport(rank, peers + 1, {0: sock}, max_kept=credit_limit(peers + 1)) for rank, sock in socks.items()]


def ready(sock: socket.socket) -> socket.socket:
    """As the transport's own rendezvous leaves a socket."""
    set_options(sock)
    sock.setblocking(False)
    return sock


async def answering(middle: TcpTransport, task: Task) -> list[int]:
    """Answer every message of every peer with its own bytes, each in its own order."""
    counts = [0] * task["peers"]

    async def answer(peer: int, lane: int) -> None:
        expected = 0
        while True:
            frame = await middle.receive(peer, ("ask", lane))
            if frame.note == LAST:
                return
            if frame.note != expected:
                raise RuntimeError(
                    f"out of order (peer: {peer}, lane: {lane}, expected: {expected}, came: {frame.note})"
                )
            expected += 1
            counts[peer - 1] += 1
            await middle.send(peer, ("answer", lane), frame.blocks[0], note=frame.note)

    await all_lanes(answer, range(1, task["peers"] + 1), task["in_flight"])
    return counts


async def asking(ends: list[TcpTransport], task: Task) -> list[int]:
    """Keep so many messages in flight from each end, for so many seconds."""
    loop = asyncio.get_running_loop()
    until = loop.time() + task["seconds"]

    async def ask(rank: int, lane: int) -> None:
        end, number = ends[rank - 1], 0
        while loop.time() < until:
            body = np.full(task["bytes"], (31 * rank + 7 * lane + number) % 251, np.uint8)
            await end.send(0, ("ask", lane), body, note=number)
            frame = await end.receive(0, ("answer", lane))
            if frame.note != number or bytes(frame.blocks[0].data) != bytes(body):
                raise RuntimeError(f"another answer came (peer: {rank}, lane: {lane}, number: {number})")
            number += 1
        await end.send(0, ("ask", lane), note=LAST)

    await all_lanes(ask, range(1, len(ends) + 1), task["in_flight"])
    return []


async def all_lanes(work, ranks: range, lanes: int) -> None:
    """Do the work for every rank and lane at once."""
    async with asyncio.TaskGroup() as group:
        for lane in range(lanes):
            for rank in ranks:
                group.create_task(work(rank, lane))


if __name__ == "__main__":
    sys.exit(run(measure))
