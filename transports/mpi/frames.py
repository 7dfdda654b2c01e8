"""Headers, and small bodies with them. The one rule: frames are asked for (a probe) and fetched one at a time.

No receive from "anybody" is ever left open: over MPICH's UCX module, with ranks on several nodes, such a receive hears
the first frame of each peer and then no more. A probe also tells the length, so that no memory waits for the longest.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from mpi4py import MPI

from transports.errors import TransportError, WireError
from transports.mpi.progress import ProgressEngine
from transports.mpi.requests import TAKEN_S, outcome_now, translated

TAG = 0  # the other tags of the communicator are for those who make communicators out of it
PROBES = 8
MOST = 16  # frames taken in at one poll, so that a flood leaves the loop its turns

Heard = Callable[[int, memoryview], None]


class Frames:
    """This rank's frames on one communicator.

    Args:
        longest: bytes of the longest frame that a peer may send.
        sent: called with the peer once MPI has taken a frame for it.
        heard: called with (source, frame) for every frame; the memory is its own to keep.
        failed: called when a frame cannot be received or `heard` raises a TransportError; nothing more is heard then.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        progress: ProgressEngine,
        longest: int,
        sent: Callable[[int], None],
        heard: Heard,
        failed: Callable[[TransportError], None],
    ):
        self._comm, self._progress, self._longest = comm, progress, longest
        self._sent, self._heard, self._failed = sent, heard, failed
        self._status, self._fetching = MPI.Status(), False
        progress.listen(self._listen)

    async def send(self, peer: int, frame: bytes) -> None:
        """Send; returns when MPI has taken the frame, which needs nobody to ask for it."""
        if (sending := self.begin(peer, frame)) is not None:
            await sending

    def begin(self, peer: int, frame: bytes) -> asyncio.Future[Any] | None:
        """The same without a coroutine where MPI takes the frame at once, as most; None then."""
        request = self._comm.Isend([frame, MPI.BYTE], peer, TAG)
        outcome = self._progress.poll_until(partial(outcome_now, request), TAKEN_S)
        if outcome is None:
            return self._progress.wait(request, done=lambda outcome: self._sent(peer))
        self._sent(peer)
        if isinstance(outcome, Exception):
            raise outcome
        return None

    def start(self, peer: int, frame: bytes) -> None:
        """Send without waiting; `failed` is called of an error."""
        request = self._comm.Isend([frame, MPI.BYTE], peer, TAG)
        outcome = outcome_now(request)
        if outcome is None:
            self._progress.watch(request, partial(self._taken, peer))
        else:
            self._taken(peer, outcome)

    def _taken(self, peer: int, outcome: MPI.Status | Exception) -> None:
        self._sent(peer)
        if isinstance(outcome, TransportError):
            self._failed(outcome)

    def _listen(self) -> bool:
        """Take in the frames that are here; whether there was any."""
        taken, probes = 0, PROBES
        while taken < MOST and self._progress.failure is None and self._take(probes):
            taken, probes = taken + 1, 1
        return taken > 0

    def _take(self, probes: int) -> bool:
        """Begin to fetch the next frame, which almost always ends it too; not while one is being fetched."""
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
        """Several times, 0.1 µs each: MPICH looks before it makes progress, by one packet a call."""
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
            self._heard(source, frame)
        except TransportError as error:
            self._failed(error)
