"""Shutdown of an MPI world: no rank returns from `close` while it holds messages for a peer, or a peer for it.

A closing rank sends GOODBYE to all ranks, with the number of bare buffers that it sent to each. A rank that receives
GOODBYE fetches all messages that the sender still holds, so that the sender can close. A closing rank drops what it
still receives, so that its peers can close.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mpi4py import MPI

from transports.errors import PeerLost, TransportError
from transports.mailbox import Arrival
from transports.mpi.bodies import ReceivedFrame
from transports.mpi.end import MpiEnd
from transports.mpi.requests import keep_alive
from transports.wire.arrays import landing
from transports.wire.frames import Kind, encode_head


class Shutdown:
    """One rank's end: in order, with goodbyes sent and received; or with an error.

    Args:
        end: its communicator of frames keeps the memory of unfinished requests after an error.
    """

    def __init__(self, end: MpiEnd):
        self._comm, self._end_state, self._mailbox = end.frames, end.state, end.mailbox
        self._bodies, self._channels, self._progress, self._limits = end.bodies, end.channels, end.progress, end.limits

    def drain(self) -> bool:
        """Receive and drop the buffers of closed peers. Returns whether all is received, or polling has failed."""
        if self._progress.failure is not None:
            return True
        return len(self._end_state.lost) == self._comm.size and self._channels.drain() and not self._progress.requests

    def begin(self, post: Callable[[int, bytes], None]) -> None:
        """Discard the messages that peers hold for this rank, and `post` each a frame GOODBYE."""
        self._progress.set_wakeable(False)  # no doorbell rings for bare buffers without a posted receive
        for peer in range(self._comm.size):
            for arrival in self._mailbox.drop(peer):
                if arrival.item.blocks is None:
                    self._bodies.discard(peer, arrival.item.tag, arrival.item.header.layouts)
            goodbye = encode_head(Kind.GOODBYE, note=self._channels.sent[peer], limits=self._limits)
            post(peer, goodbye)

    def refuse(self, error: TransportError) -> TransportError:
        """Fail every waiting and later operation here. Returns the reason that is kept: the first."""
        error = self._end_state.end_with(error)
        self._mailbox.fail_all(error)
        self._channels.end(error)
        return error

    def fail(self, error: TransportError) -> None:
        """End with an error. The memory of MPI's unfinished requests is kept, because MPI may still use it."""
        if self._progress.failure is None:
            keep_alive(self._comm, self._progress.fail(self.refuse(error)))

    def peer_closed(self, source: int, buffers: int) -> None:
        """Fetch all messages that the peer still holds, so that it can close; then fail receives without a message."""
        self._end_state.lose(PeerLost(source, "it closed"))
        self._channels.announce(source, buffers)
        arrivals = self._mailbox.drop(source)
        requests = [request for arrival in arrivals for request in self._fetch_held(arrival)]
        self._progress.watch_all(requests, partial(self._gone, source, arrivals))

    def _fetch_held(self, arrival: Arrival[ReceivedFrame]) -> list[MPI.Request]:
        frame = arrival.item
        if frame.blocks is not None:
            return []
        frame.blocks = landing(frame.header.layouts)
        return self._bodies.fetch(arrival.peer, frame.tag, frame.blocks)

    def _gone(self, source: int, arrivals: Sequence[Arrival[ReceivedFrame]], outcome: Any) -> None:
        if isinstance(outcome, TransportError):
            return self.fail(outcome)
        for arrival in arrivals:
            self._mailbox.put_back(arrival)
        self._mailbox.fail_peer(source, self._end_state.lost[source])
