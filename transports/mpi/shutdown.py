"""Shutdown: `close` returns only when this rank holds no message for a peer, and no peer holds one for it.

A closing rank sends GOODBYE to all ranks, with the number of bare buffers that it sent to each. A rank that receives
GOODBYE fetches all messages that the sender still holds, so that the sender can close. A closing rank drops what it
still receives, so that its peers can close.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mpi4py import MPI

from transports.errors import PeerLost, TransportError
from transports.mailbox import Arrival
from transports.mpi.channels import MpiChannels
from transports.mpi.progress import ProgressEngine
from transports.mpi.received import ReceivedFrame, ReceivedMessages
from transports.mpi.requests import keep_alive
from transports.state import TransportState


@dataclass(frozen=True, eq=False)
class Shutdown:
    """The end of one rank: in order, with goodbyes sent and received; or with an error.

    Args:
        comm: keeps the memory of unfinished requests after an error.
        state: whether this rank is open, and which peers are lost; shared with the transport.
        messages, channels: what `end` and `fail` end.
    """

    comm: MPI.Intracomm
    state: TransportState
    messages: ReceivedMessages
    channels: MpiChannels
    engine: ProgressEngine

    def discard_messages(self) -> None:
        """Discard the messages that peers hold for this rank; the caller then sends them GOODBYE."""
        self.engine.set_wakeable(False)  # no doorbell rings for bare buffers without a posted receive
        for peer in range(self.comm.size):
            self.messages.discard(peer)

    def drain(self) -> bool:
        """Receive and drop the buffers of closed peers. Returns whether all is received, or polling has failed."""
        if self.engine.failure is not None:
            return True
        everyone = len(self.state.lost) == self.comm.size  # this rank, too, sends itself a GOODBYE
        return everyone and self.channels.drain() and not self.engine.requests

    def end(self, error: TransportError) -> TransportError:
        """Fail every waiting and later operation here. Returns the reason that is kept: the first."""
        error = self.state.end_with(error)
        self.messages.end(error)
        self.channels.end(error)
        return error

    def fail(self, error: TransportError) -> None:
        """End with an error. The memory of MPI's unfinished requests is kept, because MPI may still use it."""
        if self.engine.failure is None:
            keep_alive(self.comm, self.engine.fail(self.end(error)))

    def on_peer_closed(self, source: int, buffers: int) -> None:
        """Fetch all messages that the peer still holds, so that it can close; then fail receives without a message."""
        self.state.lose(PeerLost(source, "it closed"))
        self.channels.fail_beyond(source, buffers)
        arrivals, requests = self.messages.take_all(source)
        self.engine.watch_all(requests, partial(self._after_fetch, source, arrivals))

    def _after_fetch(self, source: int, arrivals: Sequence[Arrival[ReceivedFrame]], outcome: Any) -> None:
        if isinstance(outcome, TransportError):
            return self.fail(outcome)
        for arrival in arrivals:
            self.messages.mailbox.put_back(arrival)
        self.messages.mailbox.fail_peer(source, self.state.lost[source])
