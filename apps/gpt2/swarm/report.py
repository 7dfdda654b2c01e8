"""What rank 0 reports of a swarm's steps: the same lines and JSON as of any other schedule, read from the directory.

A step that is evaluated is reported with its evaluation; the job's last step ends the report.
"""

from collections.abc import AsyncIterator
from contextlib import suppress

from apps.gpt2.report import Report
from pipelined.actors.executor import Device
from pipelined.aio.clock import Clock
from pipelined.directory import CutOff, Directory, FellBehind
from pipelined.membership.view import RETRY_S
from pipelined.state.versions import Version
from pipelined.swarm.config import Rules
from pipelined.swarm.records import EVALUATED, HEAD, Evaluated, Head
from pipelined.swarm.view import SwarmView
from pipelined.training.optimizer import OptimizerConfig
from pipelined.training.trainer import StepReport
from transports import Transport

BUSY = ("swarm", "busy")


class Busy:
    """Seconds that the ranks have computed, as they last reported.

    Args:
        device: of this rank.
    """

    def __init__(self, transport: Transport, device: Device):
        self._transport, self._device = transport, device
        self._seconds, self._seen = [0.0] * transport.world_size, 0.0

    async def send(self, view: SwarmView) -> None:
        """On other ranks: send this rank's seconds to rank 0 after every step, until cancelled."""
        while True:
            head = view.head
            await view.wait_for(lambda head=head: view.head != head)
            await self._transport.send(0, BUSY, note=self._device.busy)

    async def receive(self, rank: int) -> None:
        """On rank 0: receive the seconds of another rank, until cancelled."""
        while True:
            self._seconds[rank] = (await self._transport.receive(rank, BUSY)).note

    def idle(self, seconds: float) -> float:
        """Share of the last `seconds` in which a rank computed nothing, as the mean over all ranks."""
        self._seconds[0] = self._device.busy
        busy, self._seen = sum(self._seconds) - self._seen, sum(self._seconds)
        return min(1.0, max(0.0, 1.0 - busy / (seconds * len(self._seconds))))


class Log:
    """Follows the directory's records of steps and evaluations, change by change, so that none is missed.

    Args:
        rules: which steps are evaluated.
        optimizer_config: the number of steps, and the learning rate of each.
    """

    def __init__(
        self,
        directory: Directory,
        rules: Rules,
        optimizer_config: OptimizerConfig,
        clock: Clock,
        *,
        busy: Busy,
        report: Report,
    ):
        self._directory, self._rules, self._optimizer_config = directory, rules, optimizer_config
        self._clock, self._busy, self._report = clock, busy, report
        self._step, self._began, self._loss = -1, clock.now(), None
        self._version: Version | None = None
        self._due: tuple[Version, StepReport | None] | None = None

    async def follow(self) -> float | None:
        """Report every step until the last; returns the validation loss of the last, if it was evaluated."""
        async for key, value in self._changes():
            with suppress(ValueError):  # another release wrote it
                if key == HEAD:
                    self._on_head(Head.unpack(value))
                elif key == EVALUATED:
                    self._on_loss(Evaluated.unpack(value))
            if self._step >= self._optimizer_config.steps and self._due is None:
                break
        return self._loss

    def _on_head(self, head: Head) -> None:
        if head.version == self._version:
            return  # only peers changed their stage
        now, report = self._clock.now(), None
        if head.was_summed and head.step > self._step >= 0:
            report = self._report_of(head, now - self._began)
        elif self._step >= 0:
            self._report.say(f"went back to step {head.step}, which all stages had saved")
        self._step, self._version, self._began, self._due = head.step, head.version, now, None
        if self._rules.evaluates(head.step, head.step >= self._optimizer_config.steps):
            self._due = head.version, report
        elif report:
            self._report.step(report, None)

    def _on_loss(self, evaluated: Evaluated) -> None:
        """The validation loss of a step was recorded; the next step is decided after that."""
        version, report = self._due or (None, None)
        if evaluated.version == version:
            self._due, self._loss = None, evaluated.loss
            self._report.step(report, self._loss) if report else self._report.evaluated(evaluated.step, self._loss)

    def _report_of(self, head: Head, passed: float) -> StepReport:
        step = head.step - 1
        idle = self._busy.idle(passed)
        return StepReport(step, head.loss, head.norm, self._optimizer_config.rate(step), passed, idle, False)

    async def _changes(self) -> AsyncIterator[tuple[str, bytes]]:
        """Keys and values: first the present ones, then each change, in order."""
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
