"""What the leader does when a stage loses its peers: it moves a peer of another stage there, or rolls all stages back.

A peer is moved if the last peer of a stage is about to leave, or if all are lost and the stage's state was saved; never
the last peer of its own stage. All stages roll back to one step of one lineage if a stage has joining peers, but no
peer that has its state: without a rollback the swarm would wait forever. The head announces both.
"""

from collections.abc import Sequence
from contextlib import suppress

from pipelined.aio.clock import Clock
from pipelined.membership.census import STAY
from pipelined.membership.records import Phase
from pipelined.membership.view import NoLongerValid
from pipelined.state.versions import SavedStage, common_step
from pipelined.swarm.config import Rules
from pipelined.swarm.leader.rebalance import Stage, moves
from pipelined.swarm.view import SwarmView

PATIENCE_LEASES = 2
"""Leases for which a stage must be lost: a peer that was cut off may return with its state."""


class Rollback:
    """Detects that all stages must return to a saved step, and to which.

    Args:
        resume: return to a saved step of any run; else only to one of this run.
    """

    def __init__(self, view: SwarmView, rules: Rules, clock: Clock, resume: bool):
        self._view, self._stages, self._clock, self.resume = view, rules.stages, clock, resume
        self._patience_s = PATIENCE_LEASES * rules.lease_s

    async def wait(self) -> SavedStage:
        """Wait until the swarm must roll back, and can. Returns the saved step."""
        while True:
            await self._view.wait_for(self._due)
            with suppress(NoLongerValid):
                async with self._view.while_holds(lambda: self._due() is not None):
                    await self._clock.sleep(self._patience_s)
                    if (saved := self._due()) is not None:
                        return saved

    def _due(self) -> SavedStage | None:
        """The step to which the swarm must roll back; None: it need not, or cannot."""
        lost = self._view.head is None or any(self._lost(stage) for stage in range(self._stages))
        return self._latest() if lost else None

    def _lost(self, stage: int) -> bool:
        return not self._view.census.holding(stage) and bool(self._view.joining(stage))

    def _latest(self) -> SavedStage | None:
        """The latest step that all stages saved; None where the swarm is at this step."""
        here = self._view.head.version if self._view.head else None
        saved_stages = [saved for each in self._view.saved.values() for saved in each.all()]
        latest = common_step(saved for saved in saved_stages if self.resume or (here and saved.version.run == here.run))
        return None if latest is None or latest.version == here else latest


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
            due = await self._view.wait_for(self._reassignments)
            with suppress(NoLongerValid):
                async with self._view.while_holds(lambda: bool(self._reassignments())):
                    draining = any(self._is_draining(stage) for stage in due.values())
                    await self._clock.sleep(0.0 if draining else PATIENCE_LEASES * self._rules.lease_s)
                    return self._reassignments()

    def _reassignments(self) -> dict[str, int]:
        head = self._view.head
        if not self._rules.rebalance_s or head is None:
            return {}
        stages = range(self._rules.stages)
        deserted = [stage for stage in stages if not self._view.census.is_kept(stage) and self._state_available(stage)]
        calls = moves(self._stages()) if deserted else {}
        return {name: stage for name, stage in calls.items() if stage in deserted and head.moves.get(name) != stage}

    def _stages(self) -> Sequence[Stage]:
        """By stage, the peers that stay (all with the same load) and those that join (None)."""
        at = self._view.census.at
        return [
            {peer.name: 1.0 if peer.phase == Phase.SERVING else None for peer in at(stage) if peer.phase in STAY}
            for stage in range(self._rules.stages)
        ]

    def _state_available(self, stage: int) -> bool:
        """Whether a moved peer can get the stage's state: from a draining peer, or, where no peer holds it, from a step
        that this run saved, or, before the first step, by building it.
        """
        if self._view.holding(stage):
            return self._is_draining(stage)
        if self._view.version.is_untrained:
            return True
        run = self._view.version.run
        saved_stages = [saved for each in self._view.saved.values() for saved in each.all()]
        return common_step(saved for saved in saved_stages if saved.version.run == run) is not None

    def _is_draining(self, stage: int) -> bool:
        return any(peer.phase == Phase.DRAINING for peer in self._view.serving(stage))
