"""A peer's membership over time: its states, its announcements, its drain after a notice, its return after eviction.

A draining peer that is the last of its stage serves until another peer has the state, or its grace period ends. If
several peers are to leave at once, the one with the latest announcement stays. All peers agree on which one that is,
because the directory puts the announcements in one order.

An evicted peer is no member and keeps its state. The leader writes `evicted/NAME` to the directory; that key expires,
each time after a longer pause. The peer joins again when the key has expired and the step that it delayed is committed,
so none delays a step twice. If no other serves its stage, it joins at once. A restarted process of its name waits, too.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import NoReturn

from pipelined.aio.clock import Clock
from pipelined.membership.directory import Conflict
from pipelined.membership.messaging.client import MemberClient
from pipelined.membership.registration import Registration
from pipelined.membership.view import RETRY_S, NoLongerValid
from pipelined.process.reporting.events import warn
from pipelined.state.stages.saver import Saver
from pipelined.swarm.peer.replica import Replica
from pipelined.swarm.records.members import EVICTED, PeerRecord, Phase
from pipelined.swarm.records.view import SwarmView

MIN_ANNOUNCE_INTERVAL_S = 1.0
"""A peer repeats its announcement at most this often, however many trainers request it."""
CHECKS_PER_LEASE = 4
"""How often a peer checks whether its eviction has expired."""


class PeerState(Enum):
    """What a peer is doing."""

    OUTSIDE = "outside"  # no member: it waits for a lease, or for the end of its eviction
    JOINING = "joining"  # gets the state of its stage
    SERVING = "serving"
    DRAINING = "draining"  # serves, and leaves as soon as another peer of its stage stays
    LEAVING = "leaving"  # accepts no new work, and sends its sum to another peer
    GONE = "gone"  # its process ends

    @property
    def phase(self) -> Phase:
        """What the directory shows of a member in this state."""
        return Phase[self.name]


class PeerEvent(Enum):
    """What happens to a peer."""

    LISTED = "it gets a lease and its name"
    ARRIVED = "it has the state of its stage"
    NOTICED = "it receives a notice to leave"
    OUTDATED = "it cannot catch up with the head, or all stages rolled back"
    RELIEVED = "another peer keeps its stage, or its grace period ends"
    UNLISTED = "it gives up its lease, loses it, is evicted, or moves to another stage"
    ENDED = "it has received a notice, and nothing is left to serve"


_MEMBER = {PeerEvent.UNLISTED: PeerState.OUTSIDE}
_TABLE = {
    PeerState.OUTSIDE: {PeerEvent.LISTED: PeerState.JOINING, PeerEvent.ENDED: PeerState.GONE},
    PeerState.JOINING: {PeerEvent.ARRIVED: PeerState.SERVING, **_MEMBER},
    PeerState.SERVING: {PeerEvent.NOTICED: PeerState.DRAINING, PeerEvent.OUTDATED: PeerState.JOINING, **_MEMBER},
    PeerState.DRAINING: {PeerEvent.RELIEVED: PeerState.LEAVING, PeerEvent.OUTDATED: PeerState.JOINING, **_MEMBER},
    PeerState.LEAVING: _MEMBER,
}
NEXT = {(state, event): next_state for state, row in _TABLE.items() for event, next_state in row.items()}
"""The state after an event. A pair that is missing cannot happen."""


def state_after(state: PeerState, event: PeerEvent) -> PeerState:
    """The state after an event. Raises RuntimeError: the event cannot happen in this state."""
    next_state = NEXT.get((state, event))
    if next_state is None:
        raise RuntimeError(f"{event.name} cannot happen to a peer that is {state.value}")
    return next_state


class Presence:
    """What one peer announces of itself in the directory: its address, stage and phase.

    Args:
        name, address: of the peer.
        model: digest of what the swarm trains.
        notify: called when a trainer requests the announcement again.
        saver: says how often the peer saves, see `PeerRecord.saves_every`; None: it never does.

    Attributes:
        phase: the one announced last.
    """

    def __init__(
        self, name: str, address: str, model: str, clock: Clock, notify: Callable[[], None], *, saver: Saver | None
    ):
        self._name, self._address, self._model = name, address, model
        self._clock, self._notify, self._saver, self._announced_saves = clock, notify, saver, 0
        self.phase = Phase.JOINING
        self._announced_at_s = clock.now()
        self._requested = False

    @property
    def due_s(self) -> float:
        """Seconds until the announcement must be repeated; infinite if no trainer requested that."""
        return self._announced_at_s + MIN_ANNOUNCE_INTERVAL_S - self._clock.now() if self._requested else math.inf

    def is_outdated(self, phase: Phase) -> bool:
        """Whether the directory's record of this peer differs from what it would announce now."""
        return self.phase != phase or self._announced_saves != self._saves_every

    def request(self) -> None:
        """Repeat the announcement soon: a trainer that banned this peer requests it."""
        self._requested = True
        self._notify()

    async def announce(self, registration: Registration, phase: Phase, stage: int, successor: str = "") -> None:
        """Announce phase and stage under a lease. Raises: as `Registration.put`."""
        self._requested = False
        self._announced_at_s = self._clock.now()
        self.phase = phase
        record = self.record(registration, phase, stage, successor)
        self._announced_saves = record.saves_every
        await registration.put(record)

    def record(self, registration: Registration, phase: Phase, stage: int, successor: str = "") -> PeerRecord:
        """The record that `announce` puts."""
        return PeerRecord(
            name=self._name,
            address=self._address,
            incarnation=registration.incarnation,
            stage=stage,
            phase=phase,
            model=self._model,
            successor=successor,
            saves_every=self._saves_every,
        )

    @property
    def _saves_every(self) -> int:
        return self._saver.published_interval if self._saver else 0


class Drain:
    """How one peer drains after a notice.

    Args:
        name: of the peer.
        grace_s: longest time that the last peer of a stage continues to serve, in seconds.
    """

    def __init__(self, name: str, view: SwarmView, clock: Clock, grace_s: float):
        self._name = name
        self._view = view
        self._clock = clock
        self._grace_s = grace_s
        self._grace_end_s = math.inf

    @property
    def is_requested(self) -> bool:
        """Whether this peer was requested to leave."""
        return self._grace_end_s < math.inf

    @property
    def remaining_s(self) -> float:
        """Seconds of the grace period that are left; infinite before the notice."""
        return self._grace_end_s - self._clock.now()

    def request(self) -> None:
        """Begin the grace period; a second notice changes nothing."""
        if not self.is_requested:
            self._grace_end_s = self._clock.now() + self._grace_s
            self._view.notify()

    def may_go(self, stage: int) -> bool:
        """Whether the peer can leave now: another one keeps the stage's state, no trainer is left, or time is up.

        Other peers count only after the directory has this peer's own announcement: they may be about to leave as well.
        """
        view = self._view
        if not self.is_requested:
            return False
        if not view.trainers or self.remaining_s <= 0:
            return True
        own_record = view.peers.get(self._name)
        is_announced = own_record is not None and own_record.phase == Phase.DRAINING
        return is_announced and any(self._stays(peer) for peer in view.serving(stage))

    def is_last(self, stage: int) -> bool:
        """Whether no other peer has the stage's state."""
        return all(peer.name == self._name for peer in self._view.peers_with(stage))

    async def hand_over_sum(self, replica: Replica, client: MemberClient) -> str | None:
        """Send this peer's sum to another peer of the stage. Returns its name; None: no need, or no time."""
        view = self._view
        while replica.counted and view.trainers and not view.cut_off and await replica.follow(view.require_head()):
            limit = max(RETRY_S, self.remaining_s)
            successor = await replica.handover.hand_over_sum(view.serving(replica.index), client, limit)
            if successor is not None or self.remaining_s <= 0:
                return successor
            await view.next_change(RETRY_S)
        return None

    def _stays(self, peer: PeerRecord) -> bool:
        revision_of = self._view.record_revision
        return peer.phase == Phase.SERVING or revision_of(peer.name) > revision_of(self._name)


class PeerEvicted(Exception):
    """The leader removed this process's record from the directory; its lease is still valid."""


class Readmission:
    """How one peer becomes a member again after its eviction.

    Args:
        name: of the peer.
        lease_s: seconds of a lease.
    """

    def __init__(self, name: str, view: SwarmView, clock: Clock, lease_s: float):
        self._name = name
        self._view = view
        self._clock = clock
        self._lease_s = lease_s

    def is_member(self, registration: Registration) -> bool:
        """Whether the directory still has the peer's record, as far as this process can know."""
        view = self._view
        return self._name in view.peers or not registration.revision or view.revision < registration.revision

    async def raise_why_gone(self, registration: Registration) -> NoReturn:
        """Find out why the record is gone, and raise that.

        Raises:
            LeaseLost: the lease ended, and the record with it. PeerEvicted: only the record is gone. CutOff: the
                directory does not reply.
        """
        await registration.lease.renew()
        raise PeerEvicted

    async def wait_for_step(self, is_needed: Callable[[], bool]) -> None:
        """Wait until the others committed the step that this peer delayed, or until this peer is needed."""
        revision = self._view.head_revision
        with suppress(NoLongerValid):
            async with self._view.while_holds(lambda: not is_needed()):
                await self._view.wait_for(lambda: self._view.head_revision != revision)

    async def stay_away(self, is_needed: Callable[[], bool]) -> None:
        """Wait until this name's eviction expires, or until this peer is needed.

        Raises: CutOff: the directory does not reply.
        Cost: one small request, and `CHECKS_PER_LEASE` per lease while the name is evicted.
        """
        with suppress(NoLongerValid):
            async with self._view.while_holds(lambda: not is_needed()):
                is_reported = False
                while await self._is_evicted():
                    if not is_reported:
                        warn(
                            "still evicted", peer=self._name, why="the leader evicted it; it joins again after a pause"
                        )
                    is_reported = True
                    await self._clock.sleep(self._lease_s / CHECKS_PER_LEASE)

    async def _is_evicted(self) -> bool:
        try:
            await self._view.directory.transact({EVICTED + self._name: 0}, {})
        except Conflict:
            return True
        return False
