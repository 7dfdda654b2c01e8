"""Frames over MPI, on one communicator: sent; and probed for, received and dispatched by their kind.

A frame is the header of a message, followed by its body if small. A received message goes into the mailbox with its
body, if that is in the frame or in memory that both ranks share; else with the tag under which `transports.mpi.bodies`
fetches it. A peer's goodbye or abort ends that peer here.

Each frame is probed for and then received, one at a time. Do not leave a receive from any source open: over MPICH's UCX
module with ranks on several nodes, such a receive gets only the first frame of each peer. A probe also returns the
length, so that no memory is reserved for the longest frame.
"""

import asyncio
from enum import IntEnum
from functools import partial
from typing import Any

from mpi4py import MPI

from transports.errors import SAME_RELEASE, PeerAborted, TransportError, WireError
from transports.mpi.node import NodePeers
from transports.mpi.progress import ProgressEngine
from transports.mpi.received import ReceivedMessages
from transports.mpi.requests import SEND_TEST_S, outcome_now, transport_error
from transports.mpi.shutdown import Shutdown
from transports.wire.frames import LIMITS, PREAMBLE_BYTES, FrameKinds, parse_header, parse_preamble

TAG = 0  # `native` uses the other tags of this communicator to create communicators
PROBES_PER_POLL = 8
MAX_FRAMES_PER_POLL = 16  # frames received at one poll, so that other tasks of the loop can run during a flood


class MpiKind(IntEnum):
    """The kind of a frame."""

    MESSAGE = 1  # an addressed message; its body follows the header
    RTS = 2  # ready to send: the header of an addressed message; the sender holds its body under tag `number`
    ABORT = 4  # the sender failed; `note` is the reason
    GOODBYE = 5  # the sender closed in order, after `note` bare buffers to the receiver
    SHARED = 6  # an addressed message; its body is in memory that both ranks share, from page `number` on


MESSAGE, SHARED = MpiKind.MESSAGE, MpiKind.SHARED  # faster: Python 3.11 calls a function at each `MpiKind.MESSAGE`
KINDS = FrameKinds(MpiKind)


class MpiFrameSender:
    """Sends this rank's frames.

    Args:
        node_peers: rings a peer's doorbell after MPI has accepted a frame for it.
        shutdown: ends this rank if a frame cannot be sent.
    """

    def __init__(self, comm: MPI.Intracomm, engine: ProgressEngine, node_peers: NodePeers, shutdown: Shutdown):
        self._comm = comm
        self._engine = engine
        self._node_peers = node_peers
        self._shutdown = shutdown

    async def send(self, peer: int, frame: bytes) -> None:
        """Send a frame; returns when MPI has accepted it, which needs no posted receive."""
        if (sending := self.start_send(peer, frame)) is not None:
            await sending

    def start_send(self, peer: int, frame: bytes) -> asyncio.Future[Any] | None:
        """As `send`, but returns None if MPI accepts the frame at once, as it usually does; else the future."""
        request = self._comm.Isend([frame, MPI.BYTE], peer, TAG)
        outcome = self._engine.spin_until(partial(outcome_now, request), SEND_TEST_S)
        if outcome is None:
            return self._engine.wait(request, callback=lambda outcome: self._node_peers.ring(peer))
        self._node_peers.ring(peer)
        if isinstance(outcome, Exception):
            raise outcome
        return None

    def send_nowait(self, peer: int, frame: bytes) -> None:
        """As `send`, without waiting; an error ends this rank."""
        request = self._comm.Isend([frame, MPI.BYTE], peer, TAG)
        outcome = outcome_now(request)
        if outcome is None:
            self._engine.watch(request, partial(self._on_sent, peer))
        else:
            self._on_sent(peer, outcome)

    def _on_sent(self, peer: int, outcome: MPI.Status | Exception) -> None:
        self._node_peers.ring(peer)
        if isinstance(outcome, TransportError):
            self._shutdown.fail(outcome)


class MpiFrameReceiver:
    """Receives the frames for this rank; the progress engine calls `receive_arrived` at each poll.

    Args:
        shutdown: ends this rank with an error, or a peer that has closed.
        inline: bytes of the longest body that comes with its header.
    """

    def __init__(
        self, comm: MPI.Intracomm, engine: ProgressEngine, messages: ReceivedMessages, shutdown: Shutdown, inline: int
    ):
        self._comm = comm
        self._engine = engine
        self._messages = messages
        self._shutdown = shutdown
        self._longest = PREAMBLE_BYTES + LIMITS.header + inline
        self._status = MPI.Status()
        self._fetching = False

    def receive_arrived(self) -> bool:
        """Receive the frames that have arrived, at most `MAX_FRAMES_PER_POLL`. Returns whether there were any."""
        received, probes = 0, PROBES_PER_POLL
        while received < MAX_FRAMES_PER_POLL and self._engine.failure is None and self._receive_next(probes):
            received, probes = received + 1, 1
        return received > 0

    def _receive_next(self, probes: int) -> bool:
        """Start to receive the next frame, unless another is being received; most receives complete at once."""
        if self._fetching:
            return False
        try:
            message = self._probe(probes)
        except MPI.Exception as error:
            self._shutdown.fail(transport_error(error))
            return False
        if message is None:
            return False
        self._fetch(message, self._status.source, self._status.Get_count(MPI.BYTE))
        return True

    def _probe(self, times: int) -> MPI.Message | None:
        """Probe several times, 0.1 µs each: a call of MPICH checks first, and only then progresses by one packet."""
        for _ in range(times):
            message = self._comm.Improbe(MPI.ANY_SOURCE, TAG, self._status)
            if message is not None:
                return message
        return None

    def _fetch(self, message: MPI.Message, source: int, length: int) -> None:
        if length > self._longest:
            fact = f"rank {source} sent a frame of {length} bytes (limit: {self._longest})"
            return self._shutdown.fail(WireError(f"{fact}; {SAME_RELEASE}"))
        frame = memoryview(bytearray(length))
        request = message.Irecv([frame, MPI.BYTE])
        outcome = outcome_now(request)
        if outcome is not None:
            return self._on_received(source, frame, outcome)
        self._fetching = True
        self._engine.watch(request, partial(self._on_received, source, frame))

    def _on_received(self, source: int, frame: memoryview, outcome: MPI.Status | Exception) -> None:
        self._fetching = False
        try:
            if isinstance(outcome, Exception):
                raise outcome
            self._dispatch(source, frame)
        except TransportError as error:
            self._shutdown.fail(error)

    def _dispatch(self, source: int, frame: memoryview) -> None:
        """Handle a frame; the message keeps its memory.

        Raises:
            WireError: it is malformed. PeerLost: the sender's memory is gone.
        """
        preamble = parse_preamble(frame, KINDS)
        start = PREAMBLE_BYTES + preamble.header_bytes
        header = parse_header(preamble, frame[PREAMBLE_BYTES:start])
        kind = preamble.kind
        if kind is MESSAGE or kind is SHARED:
            body = frame[start:] if kind is MESSAGE else self._messages.view(source, preamble.number, header.nbytes)
            return self._messages.on_message(source, header, body)
        match kind:
            case MpiKind.RTS:
                self._messages.on_offer(source, header, preamble.number)
            case MpiKind.ABORT:
                self._shutdown.fail(PeerAborted(source, str(header.note)))
            case MpiKind.GOODBYE:
                self._shutdown.on_peer_closed(source, int(header.note))
