"""Headers, and small bodies with them. The one rule: one receive is always open, for any frame from anybody."""

from collections.abc import Callable

from mpi4py import MPI

from transports._errors import TransportError
from transports._mpi_requests import outcome_now
from transports._poller import Poller

TAG = 0  # the other tags of the communicator are for those who make communicators out of it

Heard = Callable[[int, memoryview], None]


class Frames:
    """This rank's frames on one communicator.

    Args:
        longest: bytes of the longest frame that a peer may send.
        heard: called with (source, frame) for every frame; the memory is its own only until it returns.
        failed: called when a frame cannot be received or `heard` raises a TransportError; nothing more is heard then.
    """

    def __init__(
        self, comm: MPI.Comm, poller: Poller, longest: int, heard: Heard, failed: Callable[[TransportError], None]
    ):
        self._comm, self._poller, self._heard, self._failed = comm, poller, heard, failed
        self._inbox = memoryview(bytearray(longest))
        self._listen()

    async def send(self, peer: int, frame: bytes) -> None:
        """Send; returns when MPI has taken the frame, which needs nobody to ask for it."""
        request = self.start(peer, frame)
        outcome = outcome_now(request)
        if outcome is None:
            await self._poller.wait(request)
        elif isinstance(outcome, Exception):
            raise outcome

    def start(self, peer: int, frame: bytes) -> MPI.Request:
        """Send without waiting; the request is the caller's to watch."""
        return self._comm.Isend([frame, MPI.BYTE], peer, TAG)

    def stop(self) -> None:
        """Take the open receive back, so that no library complains of it at the end; the poller must have let go."""
        if self._open != MPI.REQUEST_NULL:
            self._open.Cancel()
            outcome_now(self._open)

    def _listen(self) -> None:
        self._open = self._comm.Irecv([self._inbox, MPI.BYTE], MPI.ANY_SOURCE, TAG)
        self._poller.watch(self._open, self._came)

    def _came(self, outcome: MPI.Status | Exception) -> None:
        try:
            if isinstance(outcome, Exception):
                raise outcome
            self._heard(outcome.source, self._inbox[: outcome.Get_count(MPI.BYTE)])
        except TransportError as error:
            self._failed(error)
        else:
            if self._poller.failure is None:
                self._listen()
