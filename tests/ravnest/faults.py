"""What befalls the parties of a story of Ravnest, and the phases in which it begins."""

import asyncio
import random
from enum import StrEnum

from tests.virtual_time import virtual_seconds

LEASE_S = 1.0
DIRECTORY, TRAIN = "directory", "train"


class Fault(StrEnum):
    KILL = "kill a node, and start it again under its name"
    LOSE = "kill a node, and never start it again, if three are left"
    KILL_ALL = "kill all nodes, and start them again"
    FREEZE = "stop a node, and let it go on"
    CUT_OFF = "cut a node off from all others, and heal"
    CUT = "cut the link of two nodes, and heal"
    RESET = "break the connection of two nodes"
    KILL_TRAIN = "kill train, and start it again"
    JOIN = "start one more node, if it is not there yet"
    RESTART_DIRECTORY = "kill the directory, and start it from its journal"
    FREEZE_DIRECTORY = "stop the directory, and let it go on"


class Phase(StrEnum):
    OPENING = "the clusters are formed"
    TRAINING = "a step was shown"
    ROUND = "a slice of the average is on its way"
    CONFIRMED = "a round is being written"
    END_OF_ONE = "one cluster has trained its last step"


class Befallen:
    """Parties on a virtual network, and what befalls them; the story starts them and ends them.

    Args:
        names: of the nodes.
        seed: draws what a caller leaves open.

    Attributes:
        tasks: of the parties that run, by name.
        told: what befell, with the time.
    """

    def __init__(self, names, network, seed):
        self.names, self.network, self.tasks, self.told = names, network, {}, []
        self._draw = random.Random(seed)

    sleep = staticmethod(virtual_seconds)

    async def befall(self, fault, moment=None, phase=None, seconds=None, names=None):
        """Let a fault begin at a moment or in a phase, with these nodes, and end after some seconds."""
        await virtual_seconds(moment or 0.0)
        if phase is not None:
            await getattr(self, f"_{phase.name.lower()}")()
        seconds = self._draw.uniform(0.05, 2.5 * LEASE_S) if seconds is None else seconds
        names = names or self._draw.sample(self.names, 2)
        self._tell(f"{fault} ({names}, {seconds:.2f} s)")
        await getattr(self, f"_{fault.name.lower()}")(names, seconds)
        self._tell(f"over: {fault}")

    def _tell(self, text):
        self.told.append(f"{asyncio.get_running_loop().time():.3f} s: {text}")

    async def _again(self, name, seconds):
        """Kill a party, and start it again later."""
        if name in self.tasks:
            self._end(name)
            await virtual_seconds(seconds)
            self._start(name)

    async def _frozen(self, name, seconds):
        self.network.freeze(name)
        await virtual_seconds(seconds)
        self.network.thaw(name)

    async def _kill(self, names, seconds):
        await self._again(names[0], seconds)

    async def stop(self, name, seconds):
        """End a node in training as SIGTERM does: it tells the others that it leaves. Start it again later."""
        await self._training()
        task = self.tasks.pop(name)
        task.cancel()
        await asyncio.wait([task])
        self.network.kill(name)
        await virtual_seconds(seconds)
        self._start(name)

    async def _kill_all(self, names, seconds):
        async with asyncio.TaskGroup() as tasks:
            for name in self.names:
                tasks.create_task(self._again(name, seconds))

    async def _lose(self, names, seconds):
        await self.view.wait_for(
            lambda: self.view.generation
        )  # before, `train` rightly waits for as many as it was told
        if sum(name in self.tasks for name in self.names) > 2 and names[0] in self.tasks:
            self._end(names[0])

    async def _freeze(self, names, seconds):
        await self._frozen(names[0], seconds)

    async def _cut_off(self, names, seconds):
        self.network.cut_off(names[0])
        await virtual_seconds(seconds)
        self.network.heal(names[0])

    async def _cut(self, names, seconds):
        self.network.cut(*names)
        await virtual_seconds(seconds)
        self.network.heal(*names)

    async def _reset(self, names, seconds):
        self.network.reset(*names)

    async def _kill_train(self, names, seconds):
        await self._again(TRAIN, seconds)

    async def _join(self, names, seconds):
        if "late" not in self.tasks:
            self._start("late")

    async def _restart_directory(self, names, seconds):
        await self._again(DIRECTORY, seconds)

    async def _freeze_directory(self, names, seconds):
        await self._frozen(DIRECTORY, seconds)

    async def _opening(self):
        await self.view.wait_for(lambda: self.view.generation)

    async def _training(self):
        await self.view.wait_for(lambda: self.view.progress)

    async def _round(self):
        """A frame with numbers of one cluster for the other."""
        found = asyncio.get_running_loop().create_future()

        def look(event):
            of = {f"{place.holder.name}": n for n, row in enumerate(self._rows()) for place in row}
            ends = of.get(event.source), of.get(event.destination)
            if "world/buffer" in event.key and set(ends) == {0, 1} and not found.done():
                found.set_result(None)

        self.network.intercept(look)
        await found

    async def _confirmed(self):
        await self.view.wait_for(lambda: self.view.generation and self.view.rounds_of(self.view.generation))

    async def _end_of_one(self):
        await self.view.wait_for(lambda: self.view.generation and self.view.digests(self.view.generation))

    def _rows(self):
        return self.view.generation.clusters if self.view.generation else []
