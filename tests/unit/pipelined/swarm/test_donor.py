"""What a donor keeps for joiners: a state and the steps behind it, but no more than would be a few states."""

import asyncio

import numpy as np
import pytest

from pipelined.clock import VirtualClock, run_virtual
from pipelined.device import TimedDevice
from pipelined.swarm.donor import MOST_COPIES, Donor
from pipelined.swarm.records import Point
from tests.swarm.exact import ExactStage
from transports.endpoints import Party, Question, Refusal


def asked(**note):
    return Question(Party("virtual://late", 1), "topic", note)


class Training:
    """A stage that takes steps beside its donor."""

    def __init__(self):
        self.stage, self.point = ExactStage(0, 1), Point(0, "at-0")
        self.device, self.beside_s = TimedDevice({"step": 1.0}, VirtualClock()), 0.0
        self.donor = Donor(self.stage, self.device, self.beside)
        self.most = MOST_COPIES * sum(each.nbytes for each in self.stage.state().values()) // self.stage.sums.nbytes

    def take(self, steps):
        for _ in range(steps):
            total, after = np.full_like(self.stage.sums, self.point.step), Point(self.point.step + 1, "")
            after = after._replace(lineage=f"at-{after.step}")
            self.stage.apply(self.point.step, total, 1.0)
            self.donor.took(self.point, after, total, 1.0)
            self.point = after

    async def beside(self, work):
        await VirtualClock().sleep(self.beside_s)
        return work()

    async def manifest(self):
        return (await self.donor.manifest(lambda: self.point)).note

    async def keeps(self, step):
        try:
            await self.donor.total(asked(step=step, lineage=f"at-{step}"))
        except Refusal as refusal:
            assert refusal.reason == "not kept"
            return False
        return True


def test_all_steps_since_the_state_that_somebody_fetches_are_kept():
    async def live():
        training = Training()
        training.take(5)
        assert (await training.manifest())["step"] == 5
        training.take(training.most)
        assert (await training.manifest())["step"] == 5
        assert [step for step in range(5 + training.most) if await training.keeps(step)] == list(
            range(5, 5 + training.most)
        )

    run_virtual(live())


def test_who_fetches_for_longer_than_a_few_states_take_begins_with_the_present_one():
    """However long somebody is on its way, what is kept for it does not grow."""

    async def live():
        training = Training()
        root = (await training.manifest())["root"]
        training.take(training.most + 1)
        with pytest.raises(Refusal, match="not kept"):
            await training.donor.chunk(asked(root=root, index=0))
        assert [step for step in range(training.point.step) if await training.keeps(step)] == [training.most]
        assert (await training.manifest())["step"] == training.most + 1

    run_virtual(live())


def test_the_last_step_is_kept_for_who_missed_it_though_nobody_joins():
    async def live():
        training = Training()
        await training.manifest()
        training.take(3)
        training.donor.nobody_joins()
        training.take(1)
        assert [step for step in range(4) if await training.keeps(step)] == [3]

    run_virtual(live())


def test_steps_are_taken_while_what_was_copied_is_described_and_are_kept_with_it():
    """Whoever asks meanwhile waits for the same."""

    async def live():
        training = Training()
        training.take(1)
        training.beside_s = 5.0
        asking = [asyncio.ensure_future(training.manifest()) for _ in range(2)]
        await asyncio.sleep(0)
        for _ in range(3):
            await training.device.run("step", lambda: training.take(1))
        assert not any(each.done() for each in asking), "a step waited for what it does not need"
        first, second = await asyncio.gather(*asking)
        assert first == second and first["step"] == 1 and VirtualClock().now() == 5.0
        assert [step for step in range(4) if await training.keeps(step)] == [1, 2, 3]

    run_virtual(live())
