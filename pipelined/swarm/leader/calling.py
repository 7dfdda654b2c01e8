"""Calling a peer to a stage that would have none: its last one parts, or all are lost and its state was saved.

The one rule: only where training could not go on otherwise, and only who is not the last of its own stage. It is called
by the head, like any other who moves, so that all know. Knows the members and time; `rebalance` says who can be spared.
"""

from collections.abc import Sequence

from pipelined.aio.clock import Clock
from pipelined.membership.census import STAY
from pipelined.membership.view import MembershipView, NoLongerValid
from pipelined.swarm.config import Rules
from pipelined.swarm.leader.rebalance import Stage, moves
from pipelined.swarm.leader.recovery import PATIENCE_LEASES
from pipelined.swarm.records import Phase, common_step


class Calling:
    """Finds out that a stage needs one of another's peers.

    Where peers are to stay where they are (`rules.rebalance_s` of 0) nobody is called.
    """

    def __init__(self, view: MembershipView, rules: Rules, clock: Clock):
        self._view, self._rules, self._clock = view, rules, clock

    async def needed(self) -> dict[str, int]:
        """Wait until somebody has to change stage; who is to go where.

        Nobody is called to a lost stage before two leases have passed: who was cut off may come back, or others come.
        """
        while True:
            await self._view.wait_for(lambda: bool(self._calls()))
            try:
                async with self._view.while_holds(lambda: bool(self._calls())):
                    parting = any(self._parts(stage) for stage in self._calls().values())
                    await self._clock.sleep(0.0 if parting else PATIENCE_LEASES * self._rules.lease_s)
                    return self._calls()
            except NoLongerValid:
                continue

    def _calls(self) -> dict[str, int]:
        head = self._view.head
        if not self._rules.rebalance_s or head is None:
            return {}
        stages = range(self._rules.stages)
        deserted = [stage for stage in stages if not self._view.census.is_kept(stage) and self._can_be_had(stage)]
        calls = moves(self._stages()) if deserted else {}
        return {name: stage for name, stage in calls.items() if stage in deserted and head.moves.get(name) != stage}

    def _stages(self) -> Sequence[Stage]:
        """By stage, who stays (of whom all are as good) and who comes."""
        at = self._view.census.at
        return [
            {peer.name: 1.0 if peer.phase == Phase.SERVING else None for peer in at(stage) if peer.phase in STAY}
            for stage in range(self._rules.stages)
        ]

    def _can_be_had(self, stage: int) -> bool:
        """Whether a peer that is called can have the state: from a peer that parts, or, where no peer holds it, from
        what this run saved, or built anew before the first step.
        """
        if self._view.holding(stage):
            return self._parts(stage)
        if self._view.head.point.is_untrained:
            return True
        run = self._view.head.point.run
        marks = [mark for each in self._view.saved.values() for mark in each.all()]
        return common_step(mark for mark in marks if mark.point.run == run) is not None

    def _parts(self, stage: int) -> bool:
        return any(peer.phase == Phase.PARTING for peer in self._view.serving(stage))
