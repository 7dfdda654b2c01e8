"""Frames over MPI: the header of each message, followed by its body if small, on one communicator.

Each frame is probed for and then received, one at a time. Do not leave a receive from any source open: over MPICH's UCX
module with ranks on several nodes, such a receive gets only the first frame of each peer. A probe also returns the
length, so that no memory is reserved for the longest frame.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mpi4py import MPI

from transports.errors import TransportError, WireError
from transports.mpi.node import NodePeers
from transports.mpi.progress import ProgressEngine
from transports.mpi.requests import TAKEN_S, outcome_now, translated
from transports.wire.arrays import Block, fill, landing
from transports.wire.frames import Header

TAG = 0  # `native` uses the other tags of this communicator to create communicators
PROBES = 8
MOST = 16  # frames received at one poll, so that other tasks of the loop can run during a flood

Dispatch = Callable[[int, memoryview], None]


@dataclass(slots=True)
class ReceivedFrame:
    """A received frame of a message: its header, and its body or the tag to fetch the body with.

    Args:
        tag: the tag under which the sender holds the body.
        blocks: the body; None while the sender holds it.
    """

    header: Header
    tag: int
    blocks: tuple[Block, ...] | None

    def land(self, into: Sequence[Block] | None) -> tuple[Block, ...]:
        """The blocks for the receiver; not yet filled if the sender still holds the body."""
        if self.blocks is None:
            return landing(self.header.layouts, into)
        if into is None:
            return self.blocks
        blocks = landing(self.header.layouts, into)
        fill(blocks, self.blocks)
        return blocks


class Frames:
    """This rank's frames on one communicator.

    Args:
        longest: bytes of the longest frame that a peer may send.
        node_peers: rings a peer's doorbell after MPI has accepted a frame for it.
        failed: called when a frame cannot be sent or received, or its dispatch raises a TransportError.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        progress: ProgressEngine,
        longest: int,
        node_peers: NodePeers,
        failed: Callable[[TransportError], None],
    ):
        self._comm, self._progress, self._longest = comm, progress, longest
        self._node_peers, self._failed = node_peers, failed
        self._status, self._fetching = MPI.Status(), False

    def listen(self, dispatch: Dispatch) -> None:
        """Receive frames from now on; calls `dispatch(source, frame)` for each, which may keep the memory."""
        self._dispatch = dispatch
        self._progress.listen(self._listen)

    async def send(self, peer: int, frame: bytes) -> None:
        """Send a frame; returns when MPI has accepted it, which needs no posted receive."""
        if (sending := self.begin(peer, frame)) is not None:
            await sending

    def begin(self, peer: int, frame: bytes) -> asyncio.Future[Any] | None:
        """As `send`, but returns None if MPI accepts the frame at once, as it usually does; else the future."""
        request = self._comm.Isend([frame, MPI.BYTE], peer, TAG)
        outcome = self._progress.poll_until(partial(outcome_now, request), TAKEN_S)
        if outcome is None:
            return self._progress.wait(request, done=lambda outcome: self._node_peers.ring(peer))
        self._node_peers.ring(peer)
        if isinstance(outcome, Exception):
            raise outcome
        return None

    def start(self, peer: int, frame: bytes) -> None:
        """Send without waiting; calls `failed` with an error."""
        request = self._comm.Isend([frame, MPI.BYTE], peer, TAG)
        outcome = outcome_now(request)
        if outcome is None:
            self._progress.watch(request, partial(self._taken, peer))
        else:
            self._taken(peer, outcome)

    def _taken(self, peer: int, outcome: MPI.Status | Exception) -> None:
        self._node_peers.ring(peer)
        if isinstance(outcome, TransportError):
            self._failed(outcome)

    def _listen(self) -> bool:
        """Receive the frames that have arrived, at most `MOST`. Returns whether there were any."""
        taken, probes = 0, PROBES
        while taken < MOST and self._progress.failure is None and self._take(probes):
            taken, probes = taken + 1, 1
        return taken > 0

    def _take(self, probes: int) -> bool:
        """Begin to receive the next frame, unless another is being received; most receives complete at once."""
        if self._fetching:
            return False
        try:
            message = self._probe(probes)
        except MPI.Exception as error:
            self._failed(translated(error))
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
            return self._failed(WireError(f"{fact}; run the same version on all ranks"))
        frame = memoryview(bytearray(length))
        request = message.Irecv([frame, MPI.BYTE])
        outcome = outcome_now(request)
        if outcome is not None:
            return self._came(source, frame, outcome)
        self._fetching = True
        self._progress.watch(request, partial(self._came, source, frame))

    def _came(self, source: int, frame: memoryview, outcome: MPI.Status | Exception) -> None:
        self._fetching = False
        try:
            if isinstance(outcome, Exception):
                raise outcome
            self._dispatch(source, frame)
        except TransportError as error:
            self._failed(error)
