"""Random faults at random moments (`python -m tests.ravnest.story SEED` tells one story), and faults that cross.

Every run takes 512 seeds; with `--slice`, one run of hundreds takes each of the other 4,500. Of two faults that
cross, the second one befalls in the middle of what follows the first one; those stories are replayed.
"""

import asyncio
import random
from dataclasses import replace

import pytest

from pipelined.aio.clock import run_virtual
from pipelined.ravnest.stage.orders import OrderDirectory, read_orders
from pipelined.ravnest.stage.saving import SaveSettings
from pipelined.state.stages.saver import Saver
from pipelined.state.stages.store import DiskStore
from tests.ravnest.faults import LEASE_S, Fault
from tests.ravnest.story import CASE, Story, tell
from tests.ravnest.test_overlapped import TRAININGS, replayed

SEEDS, GROUP, GROUPS, GROUPS_OF_EVERY_RUN = 12, 20, 250, 25
LATE_LEAVE, OPENED_BY_SOME = 1068, 598
"""A node leaves the worlds of clusters only after later ones end; clusters end when some nodes have opened theirs."""
STEPS, CROSSED = 24, 3
SLOW_RATE = 40e3
"""Bytes a second: a late cluster's moments take about half a second."""
STRIKES = (Fault.KILL, Fault.FREEZE, Fault.CUT_OFF)


@pytest.mark.parametrize("seed", [*range(SEEDS), LATE_LEAVE, OPENED_BY_SOME])
def test_random_faults_change_no_bit(seed):
    tell(seed)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(SEEDS + group * GROUP, marks=[pytest.mark.full] if group >= GROUPS_OF_EVERY_RUN else [])
        for group in range(GROUPS)
    ],
)
def test_more_random_faults_change_no_bit(first):
    for seed in range(first, first + GROUP):
        tell(seed)


class Crossed(Story):
    """A story with random moments.

    Args:
        orders: where its nodes record what they do.
    """

    def __init__(self, seed, orders, **others):
        self.draw = random.Random(seed)
        kind = self.draw.choice(["overlapped", "overlapped", "blocking"])
        self.trains = replace(TRAININGS[kind], steps=STEPS)
        ahead = self.draw.randint(1, 3)
        super().__init__(seed=seed, training=self.trains, ahead=ahead, order_directory=orders, **others)

    async def until(self, is_so):
        """Wait until this holds of the last generation, or all is over; returns that generation."""
        await self.view.wait_for(lambda: self.ends or (self.view.generation and is_so(self.view.generation)))
        return self.view.generation

    async def strike(self, name, fault=None):
        """Strike a node with a fault that loses it, for a random time, perhaps for a lease and more."""
        fault, seconds = fault or self.draw.choice(STRIKES), self.draw.uniform(0.1, 2.5 * LEASE_S)
        if name in self.tasks:
            await self.befall(fault, seconds=seconds, names=[name, name])

    def other(self, generation, number):
        """A node of the first place of another cluster than this one."""
        return next(row[0].holder.name for n, row in enumerate(generation.clusters) if n != number)


class TakeOver(Crossed):
    """While a late cluster gets its moments over a slow line, a node of a place with a backup leaves."""

    def __init__(self, seed, orders, path):
        super().__init__(seed, orders, nodes=5, backups=1, newcomers="cluster", rate=SLOW_RATE)

    async def happen(self):
        first = await self.until(lambda each: self.view.progress)
        (backup,) = first.backups
        pair = [first.clusters[backup.cluster][backup.stage].holder.name, backup.holder.name]
        await self.strike(self.other(first, backup.cluster), Fault.KILL)
        await self.until(lambda each: each.continuation.late_clusters)
        await self.sleep(self.draw.uniform(0.0, 1.0))
        await self.strike(self.draw.choice(pair))


class TwoAtOnce(Crossed):
    """A node of each of two clusters leaves at one moment; a third cluster may go on alone, and saves."""

    def __init__(self, seed, orders, path):
        saving = SaveSettings(DiskStore(path / "saved", CASE.model.identity()), 1, "run")
        super().__init__(seed, orders, nodes=6, clusters=2 + seed % 2, saving=saving)

    async def happen(self):
        generation = await self.until(lambda each: self.view.progress)
        await self.sleep(self.draw.uniform(0.0, 2.0))
        rows = self.draw.sample(self.view.generation.clusters, 2) if len(generation.clusters) > 1 else []
        await asyncio.gather(*(self.strike(self.draw.choice(row).holder.name) for row in rows))


class TrainAtTheEnd(Crossed):
    """A generation ends because a node left; `train` is killed then, once or twice, and started again."""

    def __init__(self, seed, orders, path):
        super().__init__(seed, orders, nodes=4 + seed % 2, backups=seed % 2)

    async def happen(self):
        await self.until(lambda each: self.view.progress)
        names = [place.holder.name for row in self.view.generation.clusters for place in row]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.strike(self.draw.choice(names)))
            for _ in range(self.draw.randint(1, 2)):
                await self.until(self.view.ends)
                await self.sleep(self.draw.uniform(0.0, 0.3))
                await self.befall(Fault.KILL_TRAIN, seconds=self.draw.uniform(0.05, 1.5))


class ShortVisit(Crossed):
    """A node comes, and leaves when it is listed, when a generation ends for it, or when it is in the next one."""

    def __init__(self, seed, orders, path):
        newcomers, backups = ("backup", 1) if seed % 2 else ("cluster", 0)
        super().__init__(seed, orders, nodes=2 + backups, clusters=None, newcomers=newcomers, rate=SLOW_RATE)

    async def happen(self):
        await self.until(lambda each: self.view.progress)
        for _ in range(self.draw.randint(1, 2)):
            await self.befall(Fault.JOIN, moment=self.draw.uniform(0.0, 1.0))
            moments = [lambda each: "late" in self.view.nodes, self.view.ends, self.has_late]
            await self.until(self.draw.choice(moments))
            await self.sleep(self.draw.uniform(0.0, 0.4))
            if "late" in self.tasks and self.draw.random() < 0.5:
                self._end("late")
                await self.sleep(self.draw.uniform(0.0, 2.0))
            else:
                await self.strike("late")

    @staticmethod
    def has_late(generation):
        return any(each.name == "late" for each in generation.all_holders)


class SlowDisk(Crossed):
    """Saves take as long as some rounds, the directory's journal is slow, too, and nodes leave meanwhile."""

    def __init__(self, seed, orders, path):
        saving = SaveSettings(DiskStore(path / "saved", CASE.model.identity()), 1, "run")
        super().__init__(seed, orders, nodes=4, saving=saving)
        self.disk._pause = lambda: self.sleep(self.draw.uniform(0.0, 0.1))

    async def happen(self):
        await self.until(lambda each: self.view.progress)
        for _ in range(self.draw.randint(1, 3)):
            fault = self.draw.choice([Fault.KILL, Fault.KILL_ALL, Fault.FREEZE, Fault.RESTART_DIRECTORY, Fault.JOIN])
            await self.befall(fault, self.draw.uniform(0.0, 1.5), seconds=self.draw.uniform(0.05, 2.0))


def cross(scenario, path, seed, monkeypatch):
    """Tell a story, and replay it."""
    story, write = scenario(seed, OrderDirectory(path / "orders", "task"), path), Saver._write

    async def slowly(self, *arguments):
        await story.sleep(story.draw.uniform(0.0, 1.5) if scenario is SlowDisk else 0.0)
        await write(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Saver, "_write", slowly)
        run_virtual(story.run(story.happen()))
    orders = read_orders(path / "orders")
    assert story.ends[-1] == f"average {replayed(story.trains, orders)[0]}", "\n".join(story.told)
    return story


SCENARIOS = pytest.mark.parametrize("scenario", [TakeOver, TwoAtOnce, TrainAtTheEnd, ShortVisit, SlowDisk])


@pytest.mark.in_turns(5)
@SCENARIOS
@pytest.mark.parametrize("seed", range(CROSSED))
def test_faults_that_cross_change_no_bit(tmp_path, monkeypatch, scenario, seed):
    cross(scenario, tmp_path, seed, monkeypatch)


@pytest.mark.full
@pytest.mark.timeout(600)
@SCENARIOS
@pytest.mark.parametrize("first", range(CROSSED, 10 * GROUP, GROUP))
def test_more_faults_that_cross_change_no_bit(tmp_path, monkeypatch, scenario, first):
    for seed in range(first, first + GROUP):
        cross(scenario, tmp_path / str(seed), seed, monkeypatch)
