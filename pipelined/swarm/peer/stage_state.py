"""The state of one stage at one peer: its parameters, their version, and the microbatches counted since the last step.

Parameters do not change between two steps. Ledger and gradient sums agree whenever the device is free.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from pipelined.actors.device.executor import Executor
from pipelined.aio.clock import Clock
from pipelined.aio.tasks import Notifier
from pipelined.membership.messaging.reasons import Reason
from pipelined.state.stages.versions import Version
from pipelined.swarm.peer.device_watchdog import DeviceWatchdog
from pipelined.swarm.protocol.rounds import RoundName
from pipelined.swarm.rules import Rules
from pipelined.swarm.stages.delayed import clear_all
from pipelined.swarm.stages.swarm_stage import SwarmStage
from transports.rpc import Rejected


@dataclass
class Ledger:
    """The microbatches in one step's sum at one peer.

    Attributes:
        losses: by index, the loss of each microbatch (0 before the last stage).
        frozen: the round for which counting has stopped; None: backward passes are counted.
    """

    losses: dict[int, float] = field(default_factory=dict)
    frozen: RoundName | None = None


class Load:
    """Pieces of work requested and not yet done: the load of a peer, by which the leader balances the stages.

    The load of a peer that was idle at times is the share of time that it was busy. The load of a peer that was never
    idle is the smallest number of pieces of work that waited, because only work that always waits could go to another
    peer. The mean queue is not usable: at half use, three quarters of a piece of work wait on average, so a half-idle
    stage would look busy.

    Attributes:
        waiting: how many there are now.
    """

    def __init__(self, clock: Clock):
        self._clock, self.waiting = clock, 0
        self._period_start_s = self._last_change_s = clock.now()
        self._busy_s, self._least_waiting = 0.0, 0

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Count one more piece of work while the block runs."""
        self._change(1)
        try:
            yield
        finally:
            self._change(-1)

    def read_and_reset(self) -> float:
        """The load since the last call: up to 1 the share of busy time, else the smallest number of waiting pieces."""
        self._change(0)
        elapsed_s = self._last_change_s - self._period_start_s
        load = float(self._least_waiting) if self._least_waiting or elapsed_s <= 0 else self._busy_s / elapsed_s
        self._period_start_s = self._last_change_s
        self._busy_s = 0.0
        self._least_waiting = self.waiting
        return load

    def _change(self, delta: int) -> None:
        now = self._clock.now()
        self._busy_s += (now - self._last_change_s) if self.waiting else 0.0
        self._last_change_s, self.waiting = now, self.waiting + delta
        self._least_waiting = min(self._least_waiting, self.waiting)


class StageState:
    """One stage at one peer, shared by the parts of a replica that serve requests.

    Args:
        name: of the peer.
        index: number of the stage.
        version: of its parameters; its `step` is the next step to apply.
        parameter_version: names what they follow from; see `Head`. None: the version's lineage.

    Attributes:
        next_ledger: where updates are delayed, the ledger of the step after the current one.
        load: the work that waits for the device.
        handing_over: whether the sum is being sent to another peer.
        changed: notified when a step was applied, a round has begun, or the replica was given up.
    """

    def __init__(
        self,
        name: str,
        index: int,
        stage: SwarmStage,
        version: Version,
        *,
        rules: Rules,
        executor: Executor | DeviceWatchdog,
        parameter_version: str | None = None,
    ):
        self.name = name
        self.index = index
        self.stage = stage
        self.rules = rules
        self.executor = executor
        self.step, self.lineage = version
        self.parameter_version = version.lineage if parameter_version is None else parameter_version
        self.ledger = Ledger()
        self.next_ledger = Ledger()
        self.load = Load(executor.clock)
        self.handing_over = self.given_up = False
        self.changed = Notifier()

    @property
    def version(self) -> Version:
        return Version(self.step, self.lineage)

    async def wait_for_step(self, step: int) -> None:
        """Wait until this step is current, if it is the next one; do not wait for later steps.

        Raises:
            Rejected: "step passed" or "behind", both with this peer's step.
        """
        if step == self.step + 1:
            await self.wait_until(lambda: self.step >= step)
        if step != self.step:
            raise Rejected(Reason.STEP_PASSED if step < self.step else Reason.BEHIND, step=self.step)

    async def wait_for_version(self, version: Version) -> None:
        """As `wait_for_step`, and check the lineage: all stages may have rolled back since the request was sent."""
        await self.wait_for_step(version.step)
        if version.lineage != self.lineage:
            raise Rejected(Reason.OTHER_LINEAGE, step=self.step)

    async def wait_for_parameters(self, step: int, parameter_version: str, ahead: bool) -> None:
        """As `wait_for_step`, for the parameters that a pass needs.

        Args:
            ahead: where updates are delayed, also accept the next step: the parameters here follow from all it needs.
        """
        if ahead and self.rules.delayed and (step, parameter_version) == (self.step + 1, self.lineage):
            return
        await self.wait_for_step(step)
        if parameter_version != self.parameter_version:
            raise Rejected(Reason.OTHER_LINEAGE, step=self.step)

    def ledger_of(self, step: int) -> Ledger:
        """The ledger of the current step, or of the next."""
        return self.ledger if step == self.step else self.next_ledger

    def advance(self, version: Version, parameter_version: str) -> None:
        """Record an applied step: the ledger of the next step becomes the current one."""
        (self.step, self.lineage), self.parameter_version = version, parameter_version
        self.ledger, self.next_ledger = self.next_ledger, Ledger()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds. Raises Rejected: "left", the replica was given up."""
        while not condition():
            if self.given_up:
                raise Rejected(Reason.LEFT)
            await self.changed.wait()
        if self.given_up:
            raise Rejected(Reason.LEFT)

    async def read_sums(self) -> tuple[np.ndarray, Mapping[int, float]]:
        """The sums of the current step and their losses, after the device has finished the pass in progress.

        Nothing writes to these sums while counting is stopped, though passes of the next step may run.
        """

        def work() -> np.ndarray:
            return self.stage.sums.copy() if self.rules.delayed else self.stage.sums

        return (await self.executor.run("counted", work))[0], self.ledger.losses

    async def discard_counts(self, also_next: bool = False) -> None:
        """Discard what was counted of the current step, and with `also_next` of the next."""

        def work() -> None:  # both or neither: the caller may be cancelled before the device is free
            self.ledger.losses.clear()
            if also_next:
                self.next_ledger.losses.clear()
                clear_all(self.stage)
            else:
                self.stage.clear()

        await self.executor.run("clear", work)
