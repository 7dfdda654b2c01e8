"""Ranks that run this project's own 1F1B on emulated devices: a rank of `python -m benchmarks.swarm_throughput`."""

import asyncio
import sys

from benchmarks.harness.ranks import Task, run
from benchmarks.pipelines.emulated import EmulatedJob, Load, slowest_of
from pipelined.actors.actor import Actor
from pipelined.programs.plan import Plan
from transports import open_transport


async def measure(task: Task) -> list[float]:
    """The slowest rank's seconds of each step, on rank 0; without the first `warm_up`."""
    plan = Plan("one_f_one_b", task["depth"], task["width"], 1, task["microbatches"] // task["width"])
    load = Load({"forward": task["forward_s"], "backward": task["backward_s"]}, task["activation_bytes"])
    async with await open_transport("tcp://") as transport, Actor(transport) as actor:
        job = await asyncio.to_thread(EmulatedJob, actor, plan, load)
        taken = [await slowest_of(actor, step, job.step) for step in range(task["steps"])]
    return taken[task["warm_up"] :]


if __name__ == "__main__":
    sys.exit(run(measure))
