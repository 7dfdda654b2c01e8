"""Going back to what was saved, where the state of a stage is lost with everybody who held it.

The one rule: all stages go back to one step of one lineage, by moving the head there like any other step; and only
where they must, or the swarm would wait for ever: a stage has peers that come, and none that has its state.
"""

from pipelined.aio.clock import Clock
from pipelined.membership.view import MembershipView, NoLongerValid
from pipelined.swarm.records import Mark, common_step

PATIENCE_LEASES = 2
"""How many leases long a stage must be lost: who was cut off may come back, and has its state."""


class GoingBack:
    """Finds out that a swarm must go back, and where to.

    Args:
        resume: go back to whatever was saved; else only to what this run saved itself.
    """

    def __init__(self, view: MembershipView, stages: int, lease_s: float, clock: Clock, resume: bool):
        self._view, self._stages, self._clock, self.resume = view, stages, clock, resume
        self._patience_s = PATIENCE_LEASES * lease_s

    async def needed(self) -> Mark:
        """Wait until the swarm must go back, and can; returns where to."""
        while True:
            await self._view.wait_for(self._must)
            try:
                async with self._view.while_holds(self._must):
                    await self._clock.sleep(self._patience_s)
                    return self._latest()
            except NoLongerValid:
                continue

    def _must(self) -> bool:
        view = self._view
        lost = view.head is None or any(self._lost(stage) for stage in range(self._stages))
        return lost and self._latest() is not None

    def _lost(self, stage: int) -> bool:
        return not self._view.census.holding(stage) and bool(self._view.joining(stage))

    def _latest(self) -> Mark | None:
        """Where to go: the latest step that all stages saved; None where that is where the swarm is."""
        here = self._view.head.point if self._view.head else None
        marks = [mark for each in self._view.saved.values() for mark in each.all()]
        latest = common_step(mark for mark in marks if self.resume or (here and mark.point.run == here.run))
        return None if latest is None or latest.point == here else latest
