"""What a donor keeps for joiners: a state and the steps after it, but only so many."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.harness.timed_executor import TimedExecutor
from pipelined.aio.clock import VirtualClock
from pipelined.membership.messaging.fields import Malformed
from pipelined.state.stages.applied_steps import fetch_steps
from pipelined.state.stages.chunks import TransferError
from pipelined.state.stages.donor import MAX_TOTALS, Donor
from pipelined.state.stages.messages import FetchChunk, FetchTotals
from pipelined.state.stages.versions import Version
from tests.swarm.exact import ExactStage
from transports import Block
from transports.rpc import Party, Rejected

pytestmark = pytest.mark.virtual

LATE = "virtual://late"


SENDER = Party(LATE, 1)


class Training:
    """A stage that takes steps beside its donor."""

    def __init__(self):
        self.stage, self.version = ExactStage(0, 1), Version(0, "at-0")
        self.device, self.beside_s = TimedExecutor({"update": 1.0}, VirtualClock()), 0.0
        self.donor = Donor(self.stage, self.device, self.beside)

    def take(self, steps):
        for _ in range(steps):
            total, after = np.full_like(self.stage.sums, self.version.step), Version(self.version.step + 1, "")
            after = after._replace(lineage=f"at-{after.step}")
            self.stage.apply(self.version.step, total, 1.0)
            self.donor.keep_step(self.version, after, total, 1.0)
            self.version = after

    async def beside(self, work):
        await VirtualClock().sleep(self.beside_s)
        return work()

    async def manifest(self):
        return await self.donor.manifest(SENDER, lambda: self.version)

    async def totals(self, step):
        return await self.request(None, FetchTotals(step, f"at-{step}", 0))

    async def request(self, donor, message, limit=None):
        """As `MemberClient.request` would."""
        return await self.donor.totals(message, SENDER)

    def kept(self):
        """The steps with available totals, read without a request: a request would count as a need."""
        return [taken.version_before.step for taken in self.donor._applied_steps]


async def test_all_steps_since_a_fetched_state_are_kept():
    training = Training()
    training.take(5)
    assert (await training.manifest()).step == 5
    training.take(MAX_TOTALS)
    assert (await training.manifest()).step == 5
    assert training.kept() == list(range(5, 5 + MAX_TOTALS))


async def test_a_fetch_longer_than_the_kept_totals_begins_again():
    """However long a peer is joining, the totals kept for it do not grow; peers that take steps continue."""

    training = Training()
    root = (await training.manifest()).root
    training.take(MAX_TOTALS)
    await training.donor.chunk(FetchChunk(root, 0), SENDER)
    training.take(1)
    with pytest.raises(Rejected, match="not kept"):
        await training.donor.chunk(FetchChunk(root, 0), SENDER)
    assert training.kept() == list(range(1, MAX_TOTALS + 1))
    assert (await training.manifest()).step == MAX_TOTALS + 1


async def test_the_last_step_is_always_kept():
    training = Training()
    await training.manifest()
    training.take(3)
    training.donor.update_receivers(set(), {LATE})
    assert training.kept() == [2]
    training.take(1)
    assert training.kept() == [3]


def test_steps_are_kept_for_a_peer_that_has_yet_to_take_part_but_not_for_ever():
    """A joiner that is cut from its donors never arrives: what is kept for it is given up when it could not use it."""
    training = Training()
    for _ in range(MAX_TOTALS + 1):
        training.donor.update_receivers({LATE}, set())
        training.take(1)
    assert len(training.kept()) == 1
    training.donor.update_receivers({LATE, "virtual://later"}, set())
    training.take(3)
    assert len(training.kept()) == 4, "another that has just come needs the steps since"


async def test_a_peer_that_asks_again_after_a_long_time_has_the_steps_from_then_on():
    training = Training()
    for _ in range(2 * MAX_TOTALS):
        training.donor.update_receivers({LATE}, set())
        training.take(1)
    assert (await training.manifest()).step == 2 * MAX_TOTALS
    training.take(3)
    assert (await training.totals(2 * MAX_TOTALS)).scales == (1.0,) * 3


async def test_a_copy_is_freed_when_all_its_receivers_take_part():
    training = Training()
    await training.manifest()
    training.donor.update_receivers(set(), set())
    assert training.donor._copy is not None, "an observer asked, which is no peer of the stage"
    training.donor.update_receivers(set(), {LATE})
    assert training.donor._copy is None


async def test_one_answer_brings_all_steps_that_are_missing():
    training = Training()
    training.donor.update_receivers({LATE}, set())
    training.take(4)
    reply = await training.totals(1)
    assert [block.numpy()[0] for block in reply.totals] == [1, 2, 3]
    assert reply.scales == (1.0,) * 3 and reply.lineages == ("at-2", "at-3", "at-4")


@pytest.mark.parametrize(("most", "shapes"), [(64, [4, 4]), (40, [4]), (32, [4]), (24, [3])])
async def test_one_answer_brings_no_more_bytes_than_it_may(monkeypatch, most, shapes):
    """Of numbers of 8 bytes, 4 a step; of a total that is larger the part from the first number on."""
    monkeypatch.setattr("pipelined.state.stages.donor.AT_ONCE", most)
    training = Training()
    training.donor.update_receivers({LATE}, set())
    training.take(3)
    assert [len(block.numpy()) for block in (await training.totals(1)).totals] == shapes


@pytest.mark.parametrize("most", [8, 24, 32, 1 << 20])
async def test_a_peer_gets_totals_of_any_size(monkeypatch, most):
    monkeypatch.setattr("pipelined.state.stages.donor.AT_ONCE", most)
    training, like = Training(), np.zeros(4)
    training.donor.update_receivers({LATE}, set())
    training.donor.keep_step(Version(0, "at-0"), Version(1, "at-1"), np.arange(4.0), 0.5)
    (step,) = await fetch_steps(training, None, Version(0, "at-0"), like)
    assert step.total.tolist() == [0, 1, 2, 3] and (step.version_after, step.scale) == (Version(1, "at-1"), 0.5)


@pytest.mark.parametrize("like", [np.zeros(3), np.zeros(5), np.zeros(4, np.float32)])
async def test_a_total_of_another_stage_is_refused(like):
    training = Training()
    training.take(1)
    with pytest.raises((TransferError, Malformed), match="a total"):
        await fetch_steps(training, None, Version(0, "at-0"), like)


async def test_an_empty_part_of_a_total_is_refused():
    class Empty(Training):
        async def request(self, donor, message, limit=None):
            return replace(await super().request(donor, message), totals=(Block.of(np.zeros(0)),))

    training = Empty()
    training.take(1)
    with pytest.raises(TransferError, match=r"shape: \(0,\), here: \(4,\), from: 0"):
        await fetch_steps(training, None, Version(0, "at-0"), np.zeros(4))


async def test_steps_are_taken_while_what_was_copied_is_described_and_are_kept_with_it():
    """Further requests meanwhile wait for the same copy."""

    training = Training()
    training.take(1)
    training.beside_s = 5.0
    asking = [asyncio.ensure_future(training.manifest()) for _ in range(2)]
    await asyncio.sleep(0)
    for _ in range(3):
        await training.device.run("update", lambda: training.take(1))
    assert not any(each.done() for each in asking), "a step waited for what it does not need"
    first, second = await asyncio.gather(*asking)
    assert first.root == second.root and first.step == second.step == 1 and VirtualClock().now() == 5.0
    assert training.kept() == [0, 1, 2, 3], "and the last before that, for a peer that missed it"
