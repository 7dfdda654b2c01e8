"""The swarm's own actors over emulated devices, on the virtual clock: the time of a step, or of a part of one.

All durations follow from the given setting, so they are the same on any machine.
"""

from dataclasses import replace

from benchmarks.swarm.parties import training
from benchmarks.swarm.setting import Actors, Step
from pipelined.aio.clock import run_virtual

WARM_UP, MEASURED = 1, 1
"""Steps before the measurement, in which trainers learn the peers' speeds, and in it."""
LATE_WARM_UP, LATE_MEASURED = 3, 2
"""The same with delayed updates: the leader overlaps steps from its third on, and each takes time from the next."""


def step(actors: Actors) -> Step:
    """Let the swarm take its steps, and say what one of those measured took on average, from commit to commit."""
    warm_up, measured = (LATE_WARM_UP, LATE_MEASURED) if actors.delayed else (WARM_UP, MEASURED)

    async def play() -> Step:
        async with training(actors) as swarm:
            await swarm.stands(warm_up)
            before = swarm.look()
            await swarm.stands(warm_up + measured)
            return swarm.since(before, measured)

    return run_virtual(play())


def first(actors: Actors) -> Step:
    """Let the swarm take its first step, and say what that took since its first microbatch began.

    For peers that are alike: trainers do not know the peers' speeds yet.
    """

    async def play() -> Step:
        async with training(actors) as swarm:
            await swarm.begun(1)
            before = swarm.look()
            await swarm.stands(1)
            return swarm.since(before)

    return run_virtual(play())


def flow(actors: Actors, after: int, microbatches: int) -> Step:
    """What it takes to begin so many microbatches in the middle of a step, once so many others were begun.

    Its batch is as large as that takes, whatever the actors'.
    """
    batch = after + microbatches + actors.trainers * actors.slots

    async def play() -> Step:
        async with training(replace(actors, batch=batch)) as swarm:
            await swarm.begun(after)
            before = swarm.look()
            await swarm.begun(after + microbatches)
            return swarm.since(before)

    return run_virtual(play())
