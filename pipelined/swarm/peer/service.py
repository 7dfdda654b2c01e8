"""The requests that a peer serves: a table of topics, with the allowed senders and size limits of each.

A request is refused if it is meant for another incarnation of the peer, if its sender may not send it, or if it is
larger than the replica can need.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from pipelined.actors.device_watchdog import DeviceWatchdog
from pipelined.aio.events import recent
from pipelined.membership.access import Admission
from pipelined.membership.probe import Probe
from pipelined.state.fetch import Joining
from pipelined.state.saver import Saver
from pipelined.swarm.peer.all_reduce import UNDER_WAY
from pipelined.swarm.peer.lifecycle import Presence
from pipelined.swarm.peer.replica import Replica
from pipelined.swarm.protocol import read_round
from pipelined.swarm.view import SwarmView
from transports.rpc import Endpoint, Handler, Rejected, Request, Response
from transports.rpc.fields import field

MOST_PASSES, MOST_ROUNDS = 256, 16
"""Requests of one sender that may wait here at once: their arrays take memory meanwhile."""
MOST_EVENTS = 16
"""Number of the last events that a process reports in its status."""
Admit = Callable[[Request, int], Awaitable[None]]
"""Refuses a request that its sender may not send; see `Admission`."""


class Topic(NamedTuple):
    """One kind of request.

    Args:
        method: of the replica; handles the request.
        admit: refuses senders that may not send it.
        most_bytes: largest size of its arrays, in bytes.
        most_waiting: requests of one sender that may wait at once.
    """

    method: Callable[[Replica], Handler]
    admit: Admit
    most_bytes: int
    most_waiting: int


class PeerService:
    """Serves the requests to one peer, whichever stage it holds at the time.

    Args:
        presence: repeats the announcement when a trainer that banned this peer requests it.
        saver: its status says what could not be saved.
        probe: finds the peers of the stage that this one cannot reach.
        device: a leader's request is rejected while the device makes no progress.

    Attributes:
        replica: the served replica; None: every request is refused.
        joining: how this peer last got its state; None: it has not begun.
        incarnation: of this peer; a request to another incarnation is refused.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        view: SwarmView,
        *,
        presence: Presence,
        saver: Saver,
        probe: Probe,
        device: DeviceWatchdog,
    ):
        self._endpoint, self._view, self._admission = endpoint, view, Admission(view)
        self._presence, self._saver, self._probe, self._device = presence, saver, probe, device
        self.replica: Replica | None = None
        self.joining: Joining | None = None
        self.incarnation = 0

    def open(self, batch: int) -> None:
        """Serve requests from now on; the limits of their sizes follow from the replica.

        Args:
            batch: microbatches of a step.
        """
        for name, topic in self._table(batch).items():
            self._endpoint.handle(name, self._for_us(topic), topic.most_bytes, topic.most_waiting)
        self._endpoint.handle("announce", self._announce, 0, MOST_ROUNDS)
        self._endpoint.handle("status", self._status, 0, MOST_ROUNDS)

    def _table(self, batch: int) -> Mapping[str, Topic]:
        arrays = self.replica.passes.most_bytes if self.replica else 0
        sums = self.replica.stage.sums.nbytes if self.replica else 0
        chunk = self.replica.rounds.chunk_bytes if self.replica else 0
        doors = self._admission
        trainer, leader, peer, reader = doors.trainer, self._from_leader, doors.peer, doors.reader
        return {
            "forward": Topic(lambda replica: replica.passes.forward, trainer, arrays, MOST_PASSES),
            "backward": Topic(lambda replica: replica.passes.backward, trainer, 2 * arrays, MOST_PASSES),
            "evaluate": Topic(lambda replica: replica.passes.evaluate, trainer, 2 * arrays, MOST_PASSES),
            "prepare": Topic(lambda replica: self._in_time(replica.rounds.prepare), leader, 0, MOST_ROUNDS),
            "resume": Topic(lambda replica: replica.rounds.resume, leader, 0, MOST_ROUNDS),
            "reduce": Topic(lambda replica: self._in_time(replica.rounds.reduce), leader, 0, MOST_ROUNDS),
            "hears": Topic(lambda replica: self._hears, leader, 0, MOST_ROUNDS),
            "piece": Topic(lambda replica: replica.rounds.chunk, peer, chunk, 2 * UNDER_WAY),
            "inherit": Topic(lambda replica: replica.succession.inherit, peer, sums + 16 * batch, 1),
            "manifest": Topic(lambda replica: self._in_time(replica.manifest), reader, 0, MOST_ROUNDS),
            "chunk": Topic(lambda replica: replica.donor.chunk, reader, 0, 2 * UNDER_WAY),
            "totals": Topic(lambda replica: replica.donor.totals, reader, 0, MOST_ROUNDS),
        }

    async def _from_leader(self, request: Request, stage: int) -> None:
        term, _ = read_round(field(request.note, "round"))
        await self._admission.leader(request, term)

    def _for_us(self, topic: Topic) -> Handler:
        async def respond(request: Request) -> Response:
            self._check_meant(request)
            await topic.admit(request, self.replica.index)
            self._check_meant(request)
            return await topic.method(self.replica)(request)

        return respond

    def _in_time(self, handler: Handler) -> Handler:
        """Raises Rejected: "busy", the device makes no progress."""
        return lambda request: self._device.unless_late(handler(request))

    def _check_meant(self, request: Request) -> None:
        if field(request.note, "to") != self.incarnation:
            raise Rejected("stale", incarnation=self.incarnation)
        if self.replica is None:
            raise Rejected("behind")

    async def _announce(self, request: Request) -> Response:
        await self._admission.trainer(request, 0)
        self._presence.request()
        return Response()

    async def _hears(self, request: Request) -> Response:
        """Which members of its stage this peer cannot reach, and for which the sum waits here."""
        name, replica = read_round(request.note.get("round")), self.replica
        mates = [peer for peer in self._view.holding(replica.index) if peer.name != replica.name]
        unreachable = await self._probe.unreachable(mates)  # meanwhile a resumed process reads what has arrived
        return Response(note={"silent": unreachable, **(self.replica.rounds.awaited(name) if self.replica else {})})

    async def _status(self, request: Request) -> Response:
        """What this peer does, for status."""
        replica, endpoint = self.replica, self._endpoint
        donor = self.joining.donor if self.joining else ""
        holds, done = {}, {"forwards": 0, "backwards": 0}
        if replica is not None:
            holds = {"step": replica.step, "counted": len(replica.counted), **replica.load.told()}
            done = replica.passes.done
        traffic = {
            "sent": endpoint.bytes_sent,
            "received": endpoint.bytes_received,
            "rejected": dict(endpoint.invalid_input),
            "refused": dict(endpoint.rejected_requests),
        }
        health = {"cut_off": self._view.cut_off, "unsaved": self._saver.failed, "donor": donor}
        return Response(note={**holds, **done, **traffic, **health, **events_asked_for(request)})


def events_asked_for(request: Request) -> dict[str, Any]:
    """The last events of this process, if the request has the note `events`: most only check that it replies."""
    asked = type(request.note) is dict and request.note.get("events") is True
    return {"events": [event.told() for event in recent(MOST_EVENTS)]} if asked else {}
