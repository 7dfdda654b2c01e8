"""The `mpi` transport. No call blocks the loop, and one progress engine polls for every request.

Three communicators keep three kinds of traffic apart:

    frames    every header, followed by its body if small; each poll probes for frames
    bodies    larger bodies, held at the sender (Issend) under a tag that the header names, and received (Irecv)
              directly into the receiver's arrays once a receive is posted
    buffers   bare bytes, tag = channel

Between ranks of a node a larger body goes through shared memory, if there is room, and the header names its page. Else:

    rank 0                                   rank 1
    send(1, key, big)
      Isend  frames   RTS key, tag 7    ───>  a probe finds it; the mailbox keeps the header
      Issend bodies   tag 7                   receive(0, key, into=[x])
                                        <───  Irecv bodies tag 7, into x
      the send returns                        the receive returns

`transports.mpi.shutdown` closes the world in order.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from mpi4py import MPI

from transports.base import EndState, Message, Traffic, Transport
from transports.errors import Closed, TransportError
from transports.mailbox import Arrival, Mailbox
from transports.mpi.backoff import PollBackoff
from transports.mpi.bodies import Bodies, ReceivedFrame
from transports.mpi.channels import MpiChannels
from transports.mpi.end import MpiEnd
from transports.mpi.frames import Frames
from transports.mpi.native import MpiNative
from transports.mpi.node import NodePeers, cores_of, nodes_of
from transports.mpi.progress import ProgressEngine
from transports.mpi.requests import outcomes_now
from transports.mpi.shared import MpiShared
from transports.mpi.shutdown import Shutdown
from transports.shm.arena import Arena
from transports.shm.barrier import KEEPS_ORDER
from transports.wire.arrays import Block, copied, destinations, flat_bytes
from transports.wire.frames import DEFAULT_LIMITS, MESSAGE, Key, Kind, WireLimits, encode, encode_head

ABORT_SECONDS = 1.0


class MpiTransport(Transport):
    """One rank of an MPI world; made by `open`, on the thread that may call MPI.

    A cancelled `send` is still delivered. `close` returns when every rank has closed.

    Args:
        end: owned by the transport from now on.
    """

    def __init__(self, end: MpiEnd):
        self.rank, self.world_size, self.traffic = end.world.rank, end.world.size, Traffic()
        self._end, self._end_state, self._limits, self._inline = end, end.state, end.limits, end.inline
        self._mailbox, self._progress, self._node_peers = end.mailbox, end.progress, end.node_peers
        self._bodies, self._channels = end.bodies, end.channels
        self._natives: dict[tuple[tuple[int, ...], int], MpiNative] = {}
        self._closing, self._closed = asyncio.Lock(), False
        self._shutdown = Shutdown(end)
        self._frames = Frames(end, self._shutdown)
        self._task = asyncio.get_running_loop().create_task(self._poll())

    @classmethod
    async def open(
        cls,
        world: MPI.Intracomm,
        limits: WireLimits = DEFAULT_LIMITS,
        inline: int = 16 << 10,
        piece: int = 1 << 30,
        shared: int = 256 << 20,
    ) -> "MpiTransport":
        """Open this rank's end; returns when every rank of `world` has called this.

        Args:
            world: the communicator of all ranks; it is only duplicated and, by `kill_world`, aborted.
            inline: bodies up to this many bytes are sent with their header and need no posted receive.
            piece: the largest count given to MPI, in bytes, below 2 GiB.
            shared: size of the shared memory for larger bodies between ranks of a node, in bytes.
        """
        frames, bodies, buffers = await _duplicates(world)
        node = world.Split_type(MPI.COMM_TYPE_SHARED)
        cores, arena = cores_of(node), Arena(shared)
        progress = ProgressEngine(outcomes_now, PollBackoff.on_node(node.size, cores), arena.doze)
        node_peers = NodePeers(node, world.rank, arena, progress)
        progress.set_wakeable(node_peers.rings_all and node.size == world.size)
        end = MpiEnd(
            world=world,
            comms=(frames, bodies, buffers),
            state=EndState(world.size),
            mailbox=Mailbox(world.size),
            progress=progress,
            node_peers=node_peers,
            bodies=Bodies(bodies, progress, piece, node_peers),
            channels=MpiChannels(buffers, progress, piece),
            limits=limits,
            nodes=nodes_of(frames, node),
            oversubscribed=node.size > cores,
            inline=inline,
        )
        node.Free()
        return cls(end)

    def __repr__(self) -> str:
        return f"<MpiTransport rank {self.rank} of {self.world_size}>"

    @property
    def nodes(self) -> tuple[int, ...]:
        return self._end.nodes

    async def send(self, peer: int, key: Key, *arrays: Any, note: Any = None) -> None:
        self._end_state.check_sendable(peer)
        self._node_peers.rouse(peer)
        blocks = tuple([Block.of(array) for array in arrays])
        nbytes = sum([block.nbytes for block in blocks])
        if peer == self.rank:
            self._frames.deliver(peer, encode_head(Kind.RTS, key, blocks, note, limits=self._limits), blocks)
        elif nbytes <= self._inline:
            frame = b"".join(encode(MESSAGE, key, blocks, note, limits=self._limits))
            if (sending := self._frames.begin(peer, frame)) is not None:
                await sending
        elif shared := self._node_peers.put(peer, blocks, partial(self._head, Kind.SHARED, key, blocks, note)):
            await self._frames.send(peer, shared)
        else:
            head = partial(self._head, Kind.RTS, key, blocks, note)
            await self._bodies.hold(peer, blocks, lambda tag: self._frames.start(peer, head(tag)))
        self.traffic.count_sent(peer, nbytes)

    async def receive(self, peer: int | None, key: Key, into: Sequence[Any] | None = None) -> Message:
        self._end_state.check(peer)
        places = destinations(into)
        self._progress.wake()
        arrival = self._progress.poll_for(partial(self._mailbox.take_nowait, peer, key))
        arrival = arrival or await self._mailbox.take(peer, key)
        frame = arrival.item
        try:
            blocks = frame.land(places)
        except ValueError:
            self._mailbox.put_back(arrival)
            raise
        if frame.blocks is None:
            await self._bodies.fetched(arrival.peer, frame.tag, blocks, partial(self._restore, arrival, blocks))
        self.traffic.count_received(frame.header.nbytes)
        return Message(arrival.peer, arrival.key, blocks, frame.header.note)

    def holds(self, peer: int | None, key: Key) -> bool:
        return self._mailbox.holds(peer, key)

    async def send_buffer(self, peer: int, channel: int, buffer: memoryview, header: int = 0) -> None:
        self._end_state.check_sendable(peer, channel)
        data = flat_bytes(buffer)
        await self._channels.send(peer, channel, data)
        self.traffic.count_sent(peer, data.nbytes, header)

    async def receive_buffer(self, peer: int, channel: int, buffer: memoryview, header: int = 0) -> None:
        self._end_state.check(peer, channel)
        data = flat_bytes(buffer)
        await self._channels.receive(peer, channel, data)
        self.traffic.count_received(data.nbytes, header)

    def computing(self, busy: bool) -> None:
        self._progress.computing(busy)

    def last_key(self, peer: int) -> Key | None:
        return self._mailbox.last_key(peer)

    def native(self, ranks: Sequence[int], channel: int) -> MpiNative:
        group = (tuple(ranks), channel)
        if group not in self._natives:
            self._natives[group] = MpiNative(self, self._progress, self._end.frames, *group)
        return self._natives[group]

    def shared(self, ranks: Sequence[int], channel: int, nbytes: int) -> MpiShared | None:
        if not KEEPS_ORDER or len({self.nodes[rank] for rank in ranks}) > 1:
            return None
        return MpiShared(self, self._end, ranks, channel, nbytes)

    def kill_world(self, code: int) -> None:
        """End every rank of the job now, with this exit code: one rank of an MPI job cannot end alone."""
        self._end.world.Abort(code)

    async def abort(self, reason: str) -> None:
        if self._progress.failure is not None:
            return
        ended = self._shutdown.refuse(Closed(f"rank {self.rank} aborted: {reason}"))
        frame = encode_head(Kind.ABORT, note=reason[: self._limits.header // 8], limits=self._limits)
        with suppress(TimeoutError, TransportError):
            async with asyncio.timeout(ABORT_SECONDS):
                await asyncio.gather(*[self._frames.send(peer, frame) for peer in range(self.world_size)])
        self._shutdown.fail(ended)
        await self.close()

    async def close(self) -> None:
        """Close in order; after an abort, only free resources. Returns when every rank has closed (or one aborted)."""
        async with self._closing:
            if self._closed:
                return
            if self._end_state.end is None:
                self._shutdown.refuse(Closed(f"rank {self.rank} is closed"))
                self._shutdown.begin(self._frames.start)
            while not self._shutdown.drain():
                await self._progress.turn()
            in_order = self._progress.failure is None
            self._progress.stop()
            self._node_peers.close()
            await self._task
            self._closed = True
            if in_order:
                self._free()

    def _head(self, kind: Kind, key: Key, blocks: Sequence[Block], note: Any, where: int) -> bytes:
        return encode_head(kind, key, blocks, note, channel=where, limits=self._limits)

    def _restore(self, arrival: Arrival[ReceivedFrame], blocks: Sequence[Block]) -> None:
        arrival.item.blocks = copied(blocks)
        self._mailbox.put_back(arrival)

    async def _poll(self) -> None:
        error: TransportError = Closed(f"rank {self.rank} stopped polling")
        try:
            await self._progress.run()
        except Exception as unexpected:
            error = TransportError(f"rank {self.rank} cannot poll MPI: {unexpected}")
            raise
        finally:
            self._shutdown.fail(error)

    def _free(self) -> None:
        for comm in [*self._end.comms, *(native.comm for native in self._natives.values() if native.comm is not None)]:
            comm.Free()


async def _duplicates(world: MPI.Intracomm) -> list[MPI.Intracomm]:
    """Three duplicates of a communicator. Returns when every rank has called this; the loop runs meanwhile."""
    duplicates = [world.Idup() for _ in range(3)]
    requests = [request for _, request in duplicates]
    while not MPI.Request.Testall(requests):  # noqa: ASYNC110 (MPI has no event to wait for)
        await asyncio.sleep(1e-3)
    return [comm for comm, _ in duplicates]
