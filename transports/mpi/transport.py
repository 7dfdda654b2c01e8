"""The `mpi` transport. After `open`, no call blocks the loop; one progress engine polls for every request.

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
from dataclasses import dataclass
from typing import Any, NamedTuple

from mpi4py import MPI

from transports.base import Message, Transport
from transports.errors import Closed, TransportError
from transports.mpi.bodies import Bodies
from transports.mpi.channels import MpiChannels
from transports.mpi.frames import MESSAGE, SHARED, MpiFrameReceiver, MpiFrameSender, MpiKind
from transports.mpi.native import MpiNative, create_communicator
from transports.mpi.node import NodePeers, cores_of
from transports.mpi.poll_loop import PollBackoff
from transports.mpi.progress import ProgressEngine
from transports.mpi.received import ReceivedMessages
from transports.mpi.requests import outcomes_now
from transports.mpi.shared import MpiSharedWindows, map_windows
from transports.mpi.shutdown import Shutdown
from transports.shm.arena import Arena
from transports.shm.windows import TOTAL_STORE_ORDER
from transports.state import ABORT_CHARACTERS, ABORT_S, TransportState
from transports.wire.arrays import Block, as_targets, flat_bytes, writable_bytes
from transports.wire.frames import Key, encode_head, join_head, pack_header, unpack_header


class Communicators(NamedTuple):
    """The communicator of all ranks, and its duplicates, which the transport owns.

    `world` itself is only duplicated and, by `MpiTransport.abort_job`, aborted.
    """

    world: MPI.Intracomm
    frames: MPI.Intracomm
    bodies: MPI.Intracomm
    buffers: MPI.Intracomm


@dataclass(frozen=True, slots=True)
class MpiSettings:
    """The sizes of one rank's transport, equal on all ranks.

    Args:
        inline: bodies up to this many bytes are sent with their header and need no posted receive.
        max_count: the largest count given to MPI, in bytes, below 2 GiB.
        shared: size of the shared memory for larger bodies between ranks of a node, in bytes.
    """

    inline: int = 16 << 10
    max_count: int = 1 << 30
    shared: int = 256 << 20


class MpiTransport(Transport):
    """One rank of an MPI world; made by `open`, on the thread that may call MPI.

    A cancelled `send` is still delivered. `close` returns when every rank has closed.

    Args:
        node_peers: the other ranks of this node; owned by the transport from now on.
    """

    aborts_as_one = True

    def __init__(self, comms: Communicators, node_peers: NodePeers, engine: ProgressEngine, settings: MpiSettings):
        super().__init__(comms.world.rank, comms.world.size)
        self._comms, self._settings = comms, settings
        self._node_peers, self._engine = node_peers, engine
        self._state = TransportState(self.world_size)
        self._bodies = Bodies(comms.bodies, engine, settings.max_count, node_peers)
        self._channels = MpiChannels(comms.buffers, engine, settings.max_count)
        self._messages = ReceivedMessages(self.world_size, self._bodies, node_peers, engine)
        self._shutdown = Shutdown(comms.frames, self._state, self._messages, self._channels, engine)
        self._frames = MpiFrameSender(comms.frames, engine, node_peers, self._shutdown)
        self._receiver = MpiFrameReceiver(comms.frames, engine, self._messages, self._shutdown, settings.inline)
        self._natives: dict[tuple[tuple[int, ...], int], MpiNative] = {}
        self._close_lock = asyncio.Lock()
        self._closed = False
        self._task = asyncio.get_running_loop().create_task(self._poll())

    @classmethod
    async def open(cls, world: MPI.Intracomm, settings: MpiSettings = MpiSettings()) -> "MpiTransport":
        """Open this rank's end; returns when every rank of `world` has called this."""
        comms = await _duplicates(world)
        node = world.Split_type(MPI.COMM_TYPE_SHARED)
        cores = cores_of(node)
        arena = Arena(settings.shared)
        engine = ProgressEngine(outcomes_now, PollBackoff.on_node(node.size, cores), arena.set_sleep_state)
        node_peers = NodePeers(node, world, cores, arena, engine)
        engine.set_wakeable(node_peers.can_ring_all and node.size == world.size)
        node.Free()
        return cls(comms, node_peers, engine, settings)

    @property
    def nodes(self) -> tuple[int, ...]:
        return self._node_peers.nodes

    async def send(self, peer: int, key: Key, *arrays: Any, note: Any = None) -> None:
        self._state.check_sendable(peer)
        self._node_peers.ring_if_idle(peer)
        blocks = tuple([Block.of(array) for array in arrays])
        nbytes = sum([block.nbytes for block in blocks])
        header = pack_header(key, blocks, note)
        if peer == self.rank:
            self._messages.deliver(peer, unpack_header(header), blocks)
        elif nbytes <= self._settings.inline:
            frame = b"".join([join_head(MESSAGE, header, nbytes), *[block.data for block in blocks]])
            if (sending := self._frames.start_send(peer, frame)) is not None:
                await sending
        elif (page := self._node_peers.put(peer, blocks)) is not None:
            await self._frames.send(peer, join_head(SHARED, header, nbytes, page))
        else:
            tag = self._bodies.reserve_tag(peer)
            self._frames.send_nowait(peer, join_head(MpiKind.RTS, header, nbytes, tag))
            await self._bodies.hold(peer, tag, blocks)
        self.traffic.count_sent(peer, nbytes)

    async def receive(self, peer: int | None, key: Key, into: Sequence[Any] | None = None) -> Message:
        self._state.check(peer)
        message = await self._messages.receive(peer, key, as_targets(into))
        self.traffic.count_received(sum([block.nbytes for block in message.blocks]))
        return message

    def probe(self, peer: int | None, key: Key) -> bool:
        return self._messages.mailbox.probe(peer, key)

    async def send_buffer(self, peer: int, channel: int, buffer: memoryview) -> None:
        self._state.check_sendable(peer, channel)
        data = flat_bytes(buffer)
        await self._channels.send(peer, channel, data)
        self.traffic.count_sent(peer, data.nbytes)

    async def receive_buffer(self, peer: int, channel: int, buffer: memoryview) -> None:
        self._state.check(peer, channel)
        data = writable_bytes(buffer)
        await self._channels.receive(peer, channel, data)
        self.traffic.count_received(data.nbytes)

    def set_computing(self, busy: bool) -> None:
        self._engine.set_computing(busy)

    def last_key(self, peer: int) -> Key | None:
        return self._messages.mailbox.last_key(peer)

    async def open_native(self, ranks: Sequence[int], channel: int) -> MpiNative:
        group = (tuple(ranks), channel)
        if group not in self._natives:
            comm = await create_communicator(self, self._comms.frames, *group)
            self._natives[group] = MpiNative(comm, self._engine)
        return self._natives[group]

    async def open_shared(self, ranks: Sequence[int], channel: int, nbytes: int) -> MpiSharedWindows | None:
        if not TOTAL_STORE_ORDER or len({self.nodes[rank] for rank in ranks}) > 1:
            return None
        windows = await map_windows(self, ranks, channel, nbytes)
        other_ranks = [rank for rank in ranks if rank != self.rank]
        if windows is None:
            return None
        return MpiSharedWindows(windows, other_ranks, self._state, self._engine, self._node_peers)

    def abort_job(self, code: int) -> None:
        self._comms.world.Abort(code)

    async def abort(self, reason: str) -> None:
        if self._engine.failure is not None:
            return
        ended = self._shutdown.end(Closed(f"rank {self.rank} aborted: {reason}"))
        frame = encode_head(MpiKind.ABORT, note=reason[:ABORT_CHARACTERS])
        with suppress(TimeoutError, TransportError):
            async with asyncio.timeout(ABORT_S):
                await asyncio.gather(*[self._frames.send(peer, frame) for peer in range(self.world_size)])
        self._shutdown.fail(ended)
        await self.close()

    async def close(self) -> None:
        """Close in order; after an abort, only free resources. Returns when every rank has closed (or one aborted)."""
        async with self._close_lock:
            if self._closed:
                return
            if self._state.ended_by is None:
                self._shutdown.end(Closed(f"rank {self.rank} is closed"))
                self._shutdown.discard_messages()
                self._send_goodbyes()
            while not self._shutdown.drain():
                await self._engine.next_poll()
            in_order = self._engine.failure is None
            self._engine.stop()
            self._node_peers.close()
            await self._task
            self._closed = True
            if in_order:
                self._free_communicators()

    def _send_goodbyes(self) -> None:
        for peer in range(self.world_size):
            self._frames.send_nowait(peer, encode_head(MpiKind.GOODBYE, note=self._channels.sent[peer]))

    async def _poll(self) -> None:
        error: TransportError = Closed(f"rank {self.rank} stopped polling")
        try:
            await self._engine.run(self._receiver)
        except Exception as unexpected:
            error = TransportError(f"rank {self.rank} cannot poll MPI: {unexpected}")
            raise
        finally:
            self._shutdown.fail(error)

    def _free_communicators(self) -> None:
        _, *duplicates = self._comms
        for comm in [*duplicates, *(native.comm for native in self._natives.values())]:
            comm.Free()


async def _duplicates(world: MPI.Intracomm) -> Communicators:
    """A world with three duplicates. Returns when every rank has called this; the loop runs meanwhile."""
    duplicates = [world.Idup() for _ in range(3)]
    requests = [request for _, request in duplicates]
    while not MPI.Request.Testall(requests):  # noqa: ASYNC110 (MPI has no event to wait for)
        await asyncio.sleep(1e-3)
    return Communicators(world, *(comm for comm, _ in duplicates))
