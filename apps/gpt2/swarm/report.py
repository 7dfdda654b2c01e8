"""The report of rank 0 on a swarm's steps: the same lines and JSON as for any other schedule."""

from apps.common.run.report import Report
from pipelined.actors.device.executor import Executor
from pipelined.swarm.records.committed_steps import StepCommitted, StepEvaluated, StepEvent, StepsBegan
from pipelined.swarm.records.steps import Head
from pipelined.swarm.records.view import SwarmView
from pipelined.training.optimizer import OptimizerConfig
from pipelined.training.segments.step_report import StepReport
from transports import Transport

BUSY = ("swarm", "busy")


class ActiveTime:
    """Seconds that the devices of the ranks have computed, as they last reported.

    Args:
        device: of this rank.
    """

    def __init__(self, transport: Transport, device: Executor):
        self._transport, self._device = transport, device
        self._seconds = [0.0] * transport.world_size
        self._previous_total = 0.0

    async def send(self, view: SwarmView) -> None:
        """On other ranks: send this rank's seconds to rank 0 after every step, until cancelled."""
        if self._transport.rank == 0:
            return
        head = view.head

        def changed() -> bool:
            return view.head != head

        while True:
            await view.wait_for(changed)
            head = view.head
            await self._transport.send(0, BUSY, note=self._device.busy)

    async def receive(self, rank: int) -> None:
        """On rank 0: receive the seconds of another rank, until cancelled."""
        while True:
            self._seconds[rank] = (await self._transport.receive(rank, BUSY)).note

    def idle(self, seconds: float) -> float:
        """Share of the last `seconds` in which a rank computed nothing, as the mean over all ranks."""
        self._seconds[0] = self._device.busy
        total = sum(self._seconds)
        busy = total - self._previous_total
        self._previous_total = total
        return min(1.0, max(0.0, 1.0 - busy / (seconds * len(self._seconds))))


class StepReporter:
    """Reports each step of a swarm as the steps of other schedules are reported; an evaluated one with its evaluation.

    Args:
        optimizer_settings: the learning rate of each step.

    Attributes:
        loss: on validation data, of the last event's head; None: not measured.
    """

    def __init__(self, optimizer_settings: OptimizerConfig, *, active_time: ActiveTime, report: Report):
        self._optimizer_settings, self._active_time, self._report = optimizer_settings, active_time, report
        self._step: StepReport | None = None  # the last step, until its loss on validation data is known
        self.loss: float | None = None

    def report(self, event: StepEvent) -> None:
        """Report a commit, a rollback or an evaluation."""
        self.loss = None
        match event:
            case StepEvaluated(head, loss):
                self.loss = loss
                self._report_evaluation(head.step, loss)
            case StepsBegan(head, rolled_back, measured):
                self.loss = measured
                self._report_step(None)
                if rolled_back:
                    self._report.say(f"rolled back to step {head.step}, which all stages had saved")
                if measured is not None:
                    self._report.evaluation(head.step, measured)
            case StepCommitted(head, seconds, evaluates):
                self._report_step(None)
                self._step = self._step_report(head, seconds)
                if not evaluates:
                    self._report_step(None)

    def _report_evaluation(self, done: int, loss: float) -> None:
        if self._step is None:
            self._report.evaluation(done, loss)
        self._report_step(loss)

    def _report_step(self, loss: float | None) -> None:
        if self._step is not None:
            self._report.step(self._step, loss)
        self._step = None

    def _step_report(self, head: Head, seconds: float) -> StepReport:
        step = head.step - 1
        idle = self._active_time.idle(seconds)
        rate = self._optimizer_settings.rate(step)
        return StepReport(step, head.loss, head.norm, rate, seconds, idle_fraction=idle, stop=False)
