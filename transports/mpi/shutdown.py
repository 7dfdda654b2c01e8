"""Shutdown of an MPI world: no rank returns from `close` while it holds messages for a peer, or a peer for it.

A closing rank sends GOODBYE to all ranks, with the number of bare buffers that it sent to each. A rank that receives
GOODBYE fetches all messages that the sender still holds, so that the sender can close. A closing rank drops what it
still receives, so that its peers can close.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from mpi4py import MPI

from transports.base import EndState
from transports.errors import PeerLost, TransportError
from transports.mailbox import Arrival, Mailbox
from transports.mpi.bodies import Bodies
from transports.mpi.channels import MpiChannels
from transports.mpi.frames import FrameOwner, Frames, ReceivedFrame
from transports.mpi.progress import ProgressEngine
from transports.wire.arrays import landing
from transports.wire.frames import Kind, WireLimits, encode_head


class Shutdown:
    """One rank's goodbyes, sent and received.

    Args:
        owner: fails if a message that a closed peer holds cannot be fetched.
    """

    def __init__(
        self,
        *,
        world_size: int,
        end_state: EndState,
        mailbox: Mailbox[ReceivedFrame],
        frames: Frames,
        bodies: Bodies,
        channels: MpiChannels,
        progress: ProgressEngine,
        owner: FrameOwner,
    ):
        self._world_size, self._end_state, self._mailbox = world_size, end_state, mailbox
        self._frames, self._bodies, self._channels = frames, bodies, channels
        self._progress, self._owner = progress, owner

    @property
    def over(self) -> bool:
        """Whether every rank has closed, all buffers have come and no request is pending; or polling has failed."""
        if self._progress.failure is not None:
            return True
        return (
            len(self._end_state.lost) == self._world_size and self._channels.swallow() and not self._progress.requests
        )

    def begin(self, limits: WireLimits) -> None:
        """Discard the messages that peers hold for this rank, and send them GOODBYE."""
        self._progress.is_woken(False)  # no doorbell rings for bare buffers without a posted receive
        for peer in range(self._world_size):
            for arrival in self._mailbox.drop(peer):
                if arrival.item.blocks is None:
                    self._bodies.discard(peer, arrival.item.tag, arrival.item.header.layouts)
            goodbye = encode_head(Kind.GOODBYE, note=self._channels.sent[peer], limits=limits)
            self._frames.start(peer, goodbye)

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
            return self._owner.fail(outcome)
        for arrival in arrivals:
            self._mailbox.put_back(arrival)
        self._mailbox.fail_peer(source, self._end_state.lost[source])
