"""How the ranks of an MPI world let one another go. The one rule: nobody goes while anybody holds something for it.

Everybody says GOODBYE, with the number of bare buffers sent to each peer. A rank that hears it fetches all that this
peer still holds, so that the peer can go; a rank that closes throws away what still comes, for the same end.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mpi4py import MPI

from transports.errors import PeerLost, TransportError
from transports.liveness import EndState
from transports.mailbox import Arrival, Mailbox
from transports.mpi.bodies import Bodies
from transports.mpi.channels import Buffers
from transports.mpi.frames import Frames
from transports.mpi.message import Message
from transports.mpi.progress import ProgressEngine
from transports.wire.arrays import landing
from transports.wire.frames import Kind, Limits, encode_head


class Parting:
    """One rank's goodbyes, said and heard.

    Args:
        failed: called when what a peer held cannot be fetched.
    """

    def __init__(
        self,
        world_size: int,
        end_state: EndState,
        mailbox: Mailbox[Message],
        frames: Frames,
        bodies: Bodies,
        buffers: Buffers,
        progress: ProgressEngine,
        failed: Callable[[TransportError], None],
    ):
        self._world_size, self._end_state, self._mailbox = world_size, end_state, mailbox
        self._frames, self._bodies, self._buffers = frames, bodies, buffers
        self._progress, self._failed = progress, failed

    @property
    def over(self) -> bool:
        """Everybody closed, everything came, and nothing is under way; or all has failed."""
        if self._progress.failure is not None:
            return True
        return len(self._end_state.lost) == self._world_size and self._buffers.swallow() and not self._progress.requests

    def say(self, limits: Limits) -> None:
        """Let peers go of what they hold for this rank, and tell them that nothing more will come."""
        self._progress.is_woken(False)  # bare buffers that nobody asked for come without a ring
        for peer in range(self._world_size):
            for arrival in self._mailbox.drop(peer):
                if arrival.item.blocks is None:
                    self._bodies.discard(peer, arrival.item.tag, arrival.item.header.layouts)
            goodbye = encode_head(Kind.GOODBYE, note=self._buffers.sent[peer], limits=limits)
            self._frames.start(peer, goodbye)

    def heard(self, source: int, buffers: int) -> None:
        """Fetch all that the peer still holds, so that it can go; receives fail when nothing is left to come."""
        self._end_state.lose(PeerLost(source, "it closed"))
        self._buffers.announce(source, buffers)
        arrivals = self._mailbox.drop(source)
        requests = [request for arrival in arrivals for request in self._fetch_held(arrival)]
        self._progress.watch_all(requests, partial(self._gone, source, arrivals))

    def _fetch_held(self, arrival: Arrival[Message]) -> list[MPI.Request]:
        message = arrival.item
        if message.blocks is not None:
            return []
        message.blocks = landing(message.header.layouts)
        return self._bodies.fetch(arrival.peer, message.tag, message.blocks)

    def _gone(self, source: int, arrivals: Sequence[Arrival[Message]], outcome: Any) -> None:
        if isinstance(outcome, Exception):
            return self._failed(outcome)
        for arrival in arrivals:
            self._mailbox.put_back(arrival)
        self._mailbox.fail_peer(source, self._end_state.lost[source])
