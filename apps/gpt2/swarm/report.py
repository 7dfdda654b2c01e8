"""What rank 0 tells of a swarm's steps: the same lines and the same JSON as of any other schedule.

The rule: it only looks on. A step that is evaluated is told when that is known; the job's last step ends it.
"""

from collections.abc import AsyncIterator
from contextlib import suppress

from apps.gpt2.report import Report
from pipelined.actors.executor import Device
from pipelined.aio.clock import Clock
from pipelined.directory import CutOff, Directory, FellBehind
from pipelined.membership.view import RETRY_S, Roster
from pipelined.swarm.config import Rules
from pipelined.swarm.records import EVALUATED, HEAD, Evaluated, Head, Point
from pipelined.training.optimizer import Recipe
from pipelined.training.trainer import StepReport
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


class Log:
    """Follows what the directory says of steps and evaluations, change by change, so that none is missed.

    Args:
        rules: say which steps are evaluated.
        recipe: says how many there are, and each one's rate.
    """

    def __init__(self, directory: Directory, rules: Rules, recipe: Recipe, clock: Clock, busy: Busy, report: Report):
        self._directory, self._rules, self._recipe = directory, rules, recipe
        self._clock, self._busy, self._report = clock, busy, report
        self._step, self._began, self._loss = -1, clock.now(), None
        self._point: Point | None = None
        self._due: tuple[Point, StepReport | None] | None = None

    async def follow(self) -> float | None:
        """Tell of every step until the last; returns what that was evaluated to, if it was."""
        async for key, value in self._changes():
            with suppress(ValueError):  # whoever wrote that is not what we are
                if key == HEAD:
                    self._hear_head(Head.unpack(value))
                elif key == EVALUATED:
                    self._hear_loss(Evaluated.unpack(value))
            if self._step >= self._recipe.steps and self._due is None:
                break
        return self._loss

    def _hear_head(self, head: Head) -> None:
        if head.point == self._point:
            return  # only peers were moved
        now, told = self._clock.now(), None
        if head.was_summed and head.step > self._step >= 0:
            told = self._report_of(head, now - self._began)
        elif self._step >= 0:
            self._report.say(f"went back to step {head.step}, which all stages had saved")
        self._step, self._point, self._began, self._due = head.step, head.point, now, None
        if self._rules.evaluates(head.step, head.step >= self._recipe.steps):
            self._due = head.point, told
        elif told:
            self._report.step(told, None)

    def _hear_loss(self, evaluated: Evaluated) -> None:
        """What validation data came to at a step; the next is decided after that."""
        point, told = self._due or (None, None)
        if evaluated.point == point:
            self._due, self._loss = None, evaluated.loss
            self._report.step(told, self._loss) if told else self._report.evaluated(evaluated.step, self._loss)

    def _report_of(self, head: Head, passed: float) -> StepReport:
        step = head.step - 1
        idle = self._busy.idle(passed)
        return StepReport(step, head.loss, head.norm, self._recipe.rate(step), passed, idle, False)

    async def _changes(self) -> AsyncIterator[tuple[str, bytes]]:
        """Keys and their new values, in the order of their changes; first as they are."""
        revision = None
        while True:
            try:
                if revision is None:
                    view = await self._directory.read((HEAD, EVALUATED))
                    revision = view.revision
                    for key in (HEAD, EVALUATED):
                        if key in view.entries:
                            yield key, view.entries[key].value
                async for changes in self._directory.watch((HEAD, EVALUATED), revision):
                    for change in changes:
                        revision = change.revision
                        if change.entry is not None:
                            yield change.key, change.entry.value
            except CutOff:
                await self._clock.sleep(RETRY_S)
            except FellBehind:
                revision = None
