"""What rank 0 tells of a swarm's steps: the same lines and the same JSON as of any other schedule.

The rule: it only looks on. A step that is evaluated is told when that is known; the job's last step ends it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from apps._report import Report
from pipelined.clock import Clock
from pipelined.device import Device
from pipelined.optimizer import Recipe
from pipelined.swarm.membership import Roster
from pipelined.swarm.records import Head
from pipelined.trainer import StepReport
from transports import Transport

BUSY = ("swarm", "busy")


class Busy:
    """How long the ranks computed, as they last said it.

    Args:
        device: this rank's.
    """

    def __init__(self, transport: Transport, device: Device):
        self._transport, self._device = transport, device
        self._heard, self._seen = [0.0] * transport.world_size, 0.0

    async def tell(self, roster: Roster) -> None:
        """On other ranks: say it to rank 0 after every step, until cancelled."""
        while True:
            head = roster.head
            await roster.wait_for(lambda head=head: roster.head != head)
            await self._transport.send(0, BUSY, note=self._device.busy)

    async def hear(self, rank: int) -> None:
        """On rank 0: take down what another says, until cancelled."""
        while True:
            self._heard[rank] = (await self._transport.receive(rank, BUSY)).note

    def idle(self, seconds: float) -> float:
        """Share of these seconds, which have just passed, in which a rank computed nothing; the mean over all."""
        self._heard[0] = self._device.busy
        busy, self._seen = sum(self._heard) - self._seen, sum(self._heard)
        return min(1.0, max(0.0, 1.0 - busy / (seconds * len(self._heard))))


@dataclass(frozen=True)
class Log:
    """Follows the head.

    Args:
        due: whether a head's parameters are still to be evaluated.
    """

    roster: Roster
    due: Callable[[Head], bool]
    recipe: Recipe
    clock: Clock
    busy: Busy
    report: Report

    async def follow(self) -> float | None:
        """Tell of every step until the recipe's last; returns what that was evaluated to, if it was."""
        await self.roster.wait_for(lambda: self.roster.head is not None)
        step, began = self.roster.head.step, self.clock.now()
        evaluated = await self._evaluated(self.roster.head)
        while step < self.recipe.steps:
            await self.roster.wait_for(lambda step=step: self.roster.head.step != step)
            head, now = self.roster.head, self.clock.now()
            if head.step < step or not head.members:
                self.report.say(f"went back to step {head.step}, which all stages had saved")
            else:
                took = (now - began) / (head.step - step)
                told = self._report_of(head, took, now - began)
                evaluated = await self._evaluated(head)
                self.report.step(told, evaluated)
            step, began = head.step, now
        return evaluated

    async def _evaluated(self, head: Head) -> float | None:
        """What validation data came to there, if it is evaluated; the next step is taken after that."""
        if not self.due(head):
            return None
        await self.roster.wait_for(lambda: not self.due(head) or self.roster.head != head)
        return None if self.due(head) else self.roster.evaluated.loss

    def _report_of(self, head: Head, took: float, passed: float) -> StepReport:
        step = head.step - 1
        return StepReport(step, head.loss, head.norm, self.recipe.rate(step), took, self.busy.idle(passed), False)
