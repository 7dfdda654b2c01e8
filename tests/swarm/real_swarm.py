"""A swarm of real processes over TCP: three stages of three peers, two trainers, a coordinator; each with its fault.

What the peers tell of their steps is held to one process, to the bit.
"""

import asyncio
import signal
import time
from contextlib import AsyncExitStack, asynccontextmanager, closing

from tests.forked import forked
from tests.swarm.exact import Reference
from tests.swarm.exact_process import BATCH, STAGES, STEPS

PEERS = [f"s{stage}{letter}" for stage in range(STAGES) for letter in "abc"]


class Process:
    """One of its processes, and what it said, when."""

    def __init__(self, name, child, lines):
        self.name, self.child, self.lines, self.said, self.moments = name, child, lines, [], []

    async def listen(self, begun, wake):
        """Note its lines to its end; `begun` is set after its first step, `wake` called with each member it reports
        lost.
        """
        while line := await self.lines.readline():
            words = line.decode().split()
            self.said.append(words)
            self.moments.append(time.perf_counter())
            if words[0] == "took":
                begun.set()
            if words[0] == "gone":
                wake(words[1])

    def wake(self):
        """Let it go on if it was stopped or cut off."""
        self.child.send_signal(signal.SIGCONT)


@asynccontextmanager
async def process(*words):
    with forked("tests.swarm.exact_process", *words) as child:
        lines = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(lines)
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, child.stdout)
        with closing(pipe):
            yield Process(words[2] if len(words) > 2 else words[0], child, lines)


async def coordinator(stack, address="", journal=""):
    """Start one; itself, and where it is asked."""
    started = await stack.enter_async_context(process("coordinator", address, journal))
    return started, (await started.lines.readline()).decode().split()[1]


async def train(faults, late=(), peers=PEERS, at="", befall=None):
    """Train to the last step while faults befall, and every other trainer ends well; returns every process.

    A process that is stopped or cut off continues as soon as another one reports its loss.

    Args:
        faults: by name of a peer ("s0a" … "s2c") or trainer ("t0", "t1"), as `exact_process` takes them.
        late: peers that are started with the others, and join when two steps are committed.
        peers: that are there from the start.
        at: where the directory is; "": a coordinator is started.
        befall: awaited when training has begun.
    """
    async with AsyncExitStack() as stack:
        address = at or (await coordinator(stack))[1]
        start = lambda role, name: stack.enter_async_context(process(role, address, name, faults.get(name, "")))  # noqa: E731
        everyone, begun = [await start("peer", name) for name in peers], asyncio.Event()
        everyone += [await start("late", name) for name in late]
        trainers = [await start("train", name) for name in ("t0", "t1")]
        named = {each.name: each for each in [*everyone, *trainers]}
        async with asyncio.TaskGroup() as tasks:
            wake = lambda name: named[name].wake()  # noqa: E731
            listening = {name: tasks.create_task(each.listen(begun, wake)) for name, each in named.items()}
            if befall is not None:
                await begun.wait()
                await befall()
            await asyncio.gather(*(listening[each.name] for each in trainers if each.name not in faults))
            for task in listening.values():
                task.cancel()
        assert all(each.child.wait() == 0 for each in trainers if each.name not in faults)
        return everyone, trainers


def check(everyone, trainers, faults):
    """Every step that any peer took is that of one process; the last was taken at each stage."""
    reference = Reference(STAGES, BATCH)
    taken = [words for each in everyone for words in each.said if words[0] == "took"]
    for _, step, stage, weights in taken:
        assert weights == reference.weights(int(step), int(stage)).tobytes().hex(), (step, stage)
    assert {int(stage) for _, step, stage, _ in taken if int(step) == STEPS} == set(range(STAGES))
    for name, fault in faults.items():
        (struck,) = [each for each in [*everyone, *trainers] if each.name == name]
        assert ["struck", fault.split(":")[0], fault.split(":")[2]] in struck.said, f"{name} was not struck: {fault}"
