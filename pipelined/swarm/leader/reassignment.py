"""The rules by which peers change stage, and all stages roll back.

To balance the load, a peer moves from the least loaded stage to the most loaded one. It moves only if its stage, with
half a peer to spare, stays less loaded than the other stage was. So every move makes the slowest stage faster, no move
is reversed, and a balanced swarm moves no peer. The same loads give the same decision.

If a stage loses its peers, a peer of another stage moves there: if the last peer of the stage is about to leave, or if
all are lost and its state was saved; never the last peer of its own stage. All stages roll back to one step of one
lineage if a stage has joining peers, but no peer that has its state: without a rollback the swarm would wait forever.
The head announces both.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from pipelined.aio.clock import Clock
from pipelined.membership.view import NoLongerValid
from pipelined.state.stages.versions import SavedStage, common_step, stages_of_run
from pipelined.swarm.records.members import STAY, Phase
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import Rules

BAND_PEERS, BAND_SHARE = 0.5, 0.05
"""Spare capacity that the giving stage must keep beyond the moved peer: in peers, and as a share of all its peers."""

PeerLoads = Mapping[str, float | None]
"""The peers of a stage and their loads. Up to 1: the share of the peer in use. Above 1: the length of its queue.

None: the peer is on its way, or not measured yet.
"""


def rebalance(stages: Sequence[PeerLoads]) -> dict[str, int]:
    """The peer that moves now, with its new stage; empty where the swarm is balanced.

    The least loaded peer of the least loaded stage that can spare one moves to the most loaded stage. A stage without
    peers is served first. No stage gives its last serving peer.

    Args:
        stages: the loads of each stage's peers, in the order of the stages.
    Cost: O(peers).
    Source: SWARM, Appendix D, Algorithm 2, with line 22's DHT[s] read as that of the stage of minimum load.
    """
    stage_loads = _stage_loads(stages)
    *sources, target = sorted(range(len(stages)), key=lambda stage: (*stage_loads[stage].order, -stage))
    for source in sources:
        if stage_loads[source].can_spare_one(stage_loads[target].load):
            loads = _measured_loads(stages[source])
            return {min(loads, key=lambda peer: (loads[peer], peer)): target}
    return {}


class _StageLoad(NamedTuple):
    """The peers and the work of one stage.

    Args:
        peers: number of peers, including those on their way.
        work: of the stage, in peers.
        queue: mean load, not cut off at 1.
        serving_peers: those that are not on their way.
    """

    peers: int
    work: float
    queue: float
    serving_peers: int

    @property
    def load(self) -> float:
        """The share of its peers that is in use; infinite for a stage without peers."""
        return self.work / self.peers if self.peers else math.inf

    @property
    def order(self) -> tuple[float, float, int]:
        """Sort key from least to most loaded: by load, then by length of queues, then by falling number of peers."""
        return self.load, self.queue, -self.peers

    def can_spare_one(self, load: float) -> bool:
        """Whether the stage stays below a load without one of its peers, with capacity to spare."""
        remaining_peers = self.peers - 1 - max(BAND_PEERS, BAND_SHARE * self.peers)
        return self.serving_peers > 1 and (math.isinf(load) or self.work <= load * remaining_peers)


def _stage_loads(stages: Sequence[PeerLoads]) -> list[_StageLoad]:
    """The loads of all stages. A stage without a measured peer counts with the median work of the others."""
    measured_loads = [list(_measured_loads(stage).values()) for stage in stages]
    work_of_stages = [sum(min(load, 1.0) for load in loads) if loads else None for loads in measured_loads]
    median_work = statistics.median([work for work in work_of_stages if work is not None] or [1.0])
    return [
        _StageLoad(len(stage), median_work if work is None else work, sum(loads) / max(1, len(loads)), len(loads))
        for stage, loads, work in zip(stages, measured_loads, work_of_stages, strict=True)
    ]


def _measured_loads(stage: PeerLoads) -> dict[str, float]:
    return {peer: load for peer, load in stage.items() if load is not None}


Rebalance = Callable[[Sequence[PeerLoads]], Mapping[str, int]]
"""Chooses the new stages of the peers that move, from each peer's load by stage (None: on its way there)."""


class RebalanceTimer:
    """When one leader compares the loads of the stages.

    A peer that moved at one comparison does not move at the next.

    Args:
        decide: chooses the peers that change stage.
        interval_s: seconds from one comparison to the next; 0: never.
    """

    def __init__(self, decide: Rebalance, interval_s: float, clock: Clock):
        self._decide, self._interval_s, self._clock = decide, interval_s, clock
        self._compared_at_s = clock.now()
        self._moved_peers = set[str]()

    def take_moves(self, joining: Sequence[Mapping[str, None]], loads: Sequence[Mapping[str, float]]) -> dict[str, int]:
        """The new stages, by name, of the peers that move now.

        Args:
            joining: by stage, the peers on their way there.
            loads: by stage, the loads that its peers reported.
        """
        now = self._clock.now()
        if not self._interval_s or now - self._compared_at_s < self._interval_s:
            return {}
        self._compared_at_s = now
        moves = self._decide(
            [{**joining_peers, **measured} for joining_peers, measured in zip(joining, loads, strict=True)]
        )
        moved_before, self._moved_peers = self._moved_peers, set(moves)
        return {name: stage for name, stage in moves.items() if name not in moved_before}


PATIENCE_LEASES = 2
"""Leases for which a stage must be lost: a peer that was cut off may return with its state."""


class Rollback:
    """Detects that all stages must return to a saved step, and to which.

    Args:
        resume: return to a saved step of any run; else only to one of this run.
    """

    def __init__(self, view: SwarmView, rules: Rules, clock: Clock, resume: bool):
        self._view = view
        self._stages = rules.stages
        self._clock = clock
        self.resume = resume
        self._patience_s = PATIENCE_LEASES * rules.lease_s

    async def wait(self) -> SavedStage:
        """Wait until the swarm must roll back, and for two leases no later step was saved. Returns the saved step."""
        while True:
            await self._view.wait_for(self._target)
            is_due = partial(
                self._is_due, max((saved_stage.step for saved_stage in self._view.saved_stages), default=0)
            )
            with suppress(NoLongerValid):
                async with self._view.while_holds(is_due):
                    await self._clock.sleep(self._patience_s)
                    if (saved_stage := self._target()) is not None:
                        return saved_stage

    def _is_due(self, newest_step: int) -> bool:
        """Whether the swarm must roll back, and no stage saved a later step than this."""
        return self._target() is not None and all(stage.step <= newest_step for stage in self._view.saved_stages)

    def _target(self) -> SavedStage | None:
        """The step to which the swarm must roll back; None: it need not, or cannot."""
        is_lost = self._view.head is None or any(self._is_lost(stage) for stage in range(self._stages))
        return self._latest_saved() if is_lost else None

    def _is_lost(self, stage: int) -> bool:
        return not self._view.census.count_holding(stage) and bool(self._view.joining(stage))

    def _latest_saved(self) -> SavedStage | None:
        """The latest step that all stages saved; None where the swarm is at this step."""
        version = self._view.head.version if self._view.head else None
        saved_stages = self._view.saved_stages
        latest = common_step(
            saved_stages if self.resume else stages_of_run(version.run, saved_stages) if version else []
        )
        return None if latest is None or latest.version == version else latest


class EmergencyReassignment:
    """Detects that a stage needs a peer of another: its last one drains, or all are lost and its state was saved.

    Where peers stay at their stages (`rules.rebalance_s` of 0) no peer is moved.
    """

    def __init__(self, view: SwarmView, rules: Rules, clock: Clock):
        self._view, self._rules, self._clock = view, rules, clock

    async def wait(self) -> dict[str, int]:
        """Wait until a peer must change stage. Returns the peers' new stages by name.

        A lost stage gets a peer only after two leases: a peer that was cut off may return, or a new one join.
        """
        while True:
            due_moves = await self._view.wait_for(self._reassignments)
            with suppress(NoLongerValid):
                async with self._view.while_holds(lambda: bool(self._reassignments())):
                    draining = any(self._is_draining(stage) for stage in due_moves.values())
                    await self._clock.sleep(0.0 if draining else PATIENCE_LEASES * self._rules.lease_s)
                    if moves := self._reassignments():
                        return moves

    def _reassignments(self) -> dict[str, int]:
        head = self._view.head
        if not self._rules.rebalance_s or head is None:
            return {}
        stages = range(self._rules.stages)
        deserted = [stage for stage in stages if not self._view.census.is_kept(stage) and self._state_available(stage)]
        moves = rebalance(self._loads()) if deserted else {}
        return {name: stage for name, stage in moves.items() if stage in deserted and head.moves.get(name) != stage}

    def _loads(self) -> Sequence[PeerLoads]:
        """By stage, the peers that stay (all with the same load) and those that join (None)."""
        census = self._view.census
        return [
            {
                peer.name: 1.0 if peer.phase == Phase.SERVING else None
                for peer in census.stage_peers(stage)
                if peer.phase in STAY
            }
            for stage in range(self._rules.stages)
        ]

    def _state_available(self, stage: int) -> bool:
        """Whether a moved peer can get the stage's state: from a draining peer, or, where no peer holds it, from a step
        that this run saved, or, before the first step, by building it.
        """
        if self._view.peers_with(stage):
            return self._is_draining(stage)
        if self._view.version.is_untrained:
            return True
        return common_step(stages_of_run(self._view.version.run, self._view.saved_stages)) is not None

    def _is_draining(self, stage: int) -> bool:
        return any(peer.phase == Phase.DRAINING for peer in self._view.serving(stage))
