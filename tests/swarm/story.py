"""Random fault programs: the faults of a swarm, their moments and members, drawn from a seed; and the run.

Spared are one peer of every stage, one trainer and all disks: everything else may die, stop, be cut off, come, go, or
be told to change stage; of a stage that was saved not one peer is spared. All faults begin before `QUIET_S`, and but
for links that are cut for good, and devices that hang, they end before it; after that the swarm must get on.
"""

import asyncio
import random
import sys
from enum import StrEnum

from pipelined.aio.clock import run_virtual
from pipelined.state.stages.versions import common_step
from tests.swarm.virtual_swarm import MemoryStore, VirtualSwarm
from tests.virtual_time import virtual_seconds

QUIET_S = 4.0
PATIENCE_S = 60.0


class Fault(StrEnum):
    KILL_PEER = "kill a peer"
    KILL_TRAINER = "kill a trainer"
    FREEZE = "stop a peer, and let it go on"
    FREEZE_TRAINER = "stop a trainer, and let it go on"
    CUT_OFF = "cut a peer off from all others, and heal"
    CUT = "cut the link of two, and heal"
    PART = "cut the link of two for good"
    HANG = "let a peer's device hang for good"
    RESET = "break the connection of two"
    LEAVE = "ask a peer to leave"
    JOIN = "start a peer"
    RESTART = "kill a peer, and start it under its name"
    LOSE_STAGE = "kill all peers of a stage, and start one"
    RESTART_DIRECTORY = "kill the directory, and start it from its journal"
    FREEZE_DIRECTORY = "stop the directory, and let it go on"
    CUT_DIRECTORY = "cut the directory off from all others, and heal"


class Story:
    """One seed's swarm and what befalls it.

    Args:
        seed: everything follows from it.
        rules: other ones of the swarm; see `Rules`. In every third story updates are delayed, if they do not say.
    """

    def __init__(self, seed, steps=4, stages=None, **rules):
        draw = random.Random(seed)
        self.seed, self.steps, self._draw, self.told, self._rules = seed, steps, draw, [], rules
        self.stages = stages or draw.choice([1, 2, 3])
        self.spared = {f"anchor{stage}" for stage in range(self.stages)} | {"t0"}
        self.extra = [f"p{at}" for at in range(draw.randint(0, 2 * self.stages))]
        self.trainers = [f"t{at}" for at in range(draw.randint(1, 3))]
        self.rebalance_s = draw.choice([0.0, 0.5])
        self.events = sorted(
            (draw.uniform(0.05, QUIET_S - 1), draw.choice(list(Fault))) for _ in range(draw.randint(1, 8))
        )

    async def run(self):
        """Let it happen; every peer is looked at all the while.

        Raises:
            AssertionError: with the whole story.
        """
        rules = {"rebalance_s": self.rebalance_s, "delayed": self.seed % 3 == 2, **self._rules}
        swarm = self.swarm = VirtualSwarm(self.stages, batch=6, seed=self.seed, **rules)
        self.store = MemoryStore()
        for stage in range(self.stages):
            swarm.peer(f"anchor{stage}", stage, store=self.store)
        for name in self.extra:
            swarm.peer(name, speed=self._draw.choice([0.5, 1.0, 2.0]), store=self.store)
        for name in self.trainers:
            swarm.trainer(name, self.steps, slots=self._draw.randint(1, 4), balance=self._balance)
        try:
            async with asyncio.TaskGroup() as tasks:
                for moment, fault in self.events:
                    tasks.create_task(self._befall(moment, fault))
                tasks.create_task(self._watched(swarm))
        except BaseExceptionGroup as group:
            told = "\n  ".join(self.told)
            raise AssertionError(
                f"seed {self.seed}, {self.stages} stages:\n  {told}\n{group.exceptions[0]}"
            ) from group.exceptions[0]
        finally:
            await swarm.close()
        return swarm

    async def _watched(self, swarm):
        await swarm.finish(within=PATIENCE_S)

    async def _befall(self, moment, fault):
        await virtual_seconds(moment)
        await getattr(self, f"_{fault.name.lower()}")()

    def _tell(self, text):
        self.told.append(f"{asyncio.get_running_loop().time():.3f} s: {text}")

    def _one(self, names):
        names = sorted(set(names) - self.spared)
        return self._draw.choice(names) if names else None

    def _peer(self):
        return self._one(self.swarm.peers)

    async def _kill_peer(self):
        if (name := self._peer()) is not None:
            self._tell(f"{name} dies")
            self.swarm.kill(name)

    async def _kill_trainer(self):
        if (name := self._one(self.swarm.trainers)) is not None:
            self._tell(f"{name} dies")
            self.swarm.kill(name)

    async def _freeze(self, name=None):
        name = name or self._peer()
        if name is not None:
            self._tell(f"{name} stops")
            self.swarm.network.freeze(name)
            await virtual_seconds(self._draw.uniform(0.05, QUIET_S - 1))
            self._tell(f"{name} goes on")
            self.swarm.network.thaw(name)

    def _balance(self, loads):
        """Move any peers that are not spared to any stage, but leave each stage a peer with its state."""
        left, moves = [{name for name, load in each.items() if load is not None} for each in loads], {}
        for _ in range(self._draw.randint(0, 2) if self.stages > 1 else 0):
            movable = [(at, name) for at, each in enumerate(left) if len(each) > 1 for name in each - self.spared]
            if movable:
                at, name = self._draw.choice(sorted(movable))
                left[at].discard(name)
                moves[name] = self._draw.choice([to for to in range(self.stages) if to != at])
        self._tell(f"to go to other stages: {moves}")
        return moves

    async def _restart_directory(self):
        if "directory" in self.swarm.tasks:
            self._tell("the directory dies")
            self.swarm.kill("directory")
            await virtual_seconds(self._draw.uniform(0.0, QUIET_S - 1))
            self._tell("the directory is started again")
            self.swarm.start_directory()

    async def _freeze_directory(self):
        await self._freeze("directory")

    async def _cut_directory(self):
        await self._cut_and_heal("directory")

    async def _freeze_trainer(self):
        if (name := self._one(self.swarm.trainers)) is not None:
            await self._freeze(name)

    async def _cut_off(self):
        if (name := self._peer()) is not None:
            await self._cut_and_heal(name)

    async def _cut(self):
        one, other = self._draw.sample(sorted(self.swarm.tasks), 2)
        await self._cut_and_heal(one, other)

    async def _cut_and_heal(self, *names):
        self._tell(f"{' and '.join(names)}: cut")
        (self.swarm.network.cut if len(names) == 2 else self.swarm.network.cut_off)(*names)
        await virtual_seconds(self._draw.uniform(0.05, QUIET_S - 1))
        self._tell(f"{' and '.join(names)}: healed")
        self.swarm.network.heal(*names)

    async def _part(self):
        """Of the spared each reaches all others."""
        one, other = self._draw.sample(sorted([*self.swarm.peers, *self.swarm.trainers]), 2)
        if not {one, other} <= self.spared:
            self._tell(f"{one} and {other}: cut for good")
            self.swarm.network.cut(one, other)

    async def _hang(self):
        if (name := self._peer()) is not None:
            self._tell(f"{name}: its device hangs")
            self.swarm.hang(name)

    async def _reset(self):
        one, other = self._draw.sample(sorted(self.swarm.tasks), 2)
        self._tell(f"{one} and {other}: connection broken")
        self.swarm.network.reset(one, other)

    async def _leave(self):
        if (name := self._peer()) is not None:
            self._tell(f"{name} is asked to leave")
            self.swarm.peers[name].peer.leave()

    async def _join(self):
        name = f"late{len(self.told)}"
        self._tell(f"{name} comes")
        self.swarm.peer(name, store=self.store)

    async def _restart(self):
        if (name := self._peer()) is not None:
            self._tell(f"{name} dies and is started again")
            self.swarm.kill(name)
            self.swarm.peer(name, store=self.store)

    async def _lose_stage(self):
        """Only once something was saved: before that, what is lost is lost."""
        stage, peers = self._draw.randrange(self.stages), self.swarm.peers
        if common_step(self.store.saved_stages()) is None:
            return
        lost = {name for name, each in peers.items() if each.peer.replica and each.peer.replica.index == stage}
        self._tell(f"all peers of stage {stage} die, and one comes: {sorted(lost)}")
        for name in sorted(lost | {f"anchor{stage}"}):
            self.swarm.kill(name)
        self.swarm.peer(f"anchor{stage}", stage, store=self.store)


if __name__ == "__main__":
    story = Story(int(sys.argv[1]), **dict(word.split("=") for word in sys.argv[2:]))
    run_virtual(story.run())
    print("\n".join(story.told))
