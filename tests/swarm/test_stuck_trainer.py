"""A trainer that keeps its lease and finishes nothing: what it was given is given to another, at last at once."""

from pipelined.aio.clock import run_virtual
from tests.swarm.virtual_swarm import SECONDS, VirtualSwarm

STEPS, BATCH = 6, 8
STEP_S = BATCH * (SECONDS["forward"] + SECONDS["backward"]) + 1.0
"""More than a step takes here without a stuck trainer."""


async def story():
    """t1 reaches the first stage and the directory, and no peer of the second; t0 leads, and does all the work."""
    swarm = VirtualSwarm(stages=2, batch=BATCH)
    moments = []
    for stage in range(2):
        swarm.peer(f"p{stage}", stage)
    swarm.trainer("t0", STEPS, slots=2)
    await swarm.until(lambda: swarm.trainers["t0"].leader.report is not None)
    swarm.network.cut("t1", "p1")
    swarm.trainer("t1", STEPS, slots=2)
    for step in range(1, STEPS + 1):
        await swarm.until(lambda step=step: swarm.heads and swarm.heads[-1].step >= step)
        moments.append(swarm.network.clock("watcher").now())
    assert "t1" in swarm.trainers["t0"].view.trainers, "it was to keep its lease"
    assert swarm.trainers["t1"].trainer.done == 0
    await swarm.finish(within=5)
    await swarm.close()
    return [after - before for before, after in zip([0.0, *moments], moments, strict=False)]


def test_only_the_first_step_waits_for_a_stuck_slot():
    steps = run_virtual(story())
    late = [seconds for seconds in steps if seconds > STEP_S]
    assert len(late) <= 1 and max(steps) < 3 * STEP_S, f"seconds a step: {steps}"
