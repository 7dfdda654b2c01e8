"""A whole swarm in one process for a soak: a coordinator, peers and a trainer that meet over TCP on loopback.

python -m benchmarks.swarm.soak_swarm TASK (JSON: steps, settled, looks): prints the process's levels as JSON.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import Any

from benchmarks.harness.levels import Levels, least, look
from benchmarks.harness.timed_executor import TimedExecutor
from benchmarks.swarm.devices import Relay
from pipelined.aio.clock import RealClock
from pipelined.membership.connection import LocalMember
from pipelined.membership.directory import Directory, open_directory, serve_directory
from pipelined.membership.directory.limits import DirectoryLimits
from pipelined.swarm.peer.components import PeerSetup
from pipelined.swarm.process.peer_process import PeerProcess
from pipelined.swarm.process.trainer_process import TrainerProcess
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import Rules
from pipelined.swarm.stages.swarm_stage import Microbatch
from transports import Nursery, new_event_loop
from transports.rpc import Endpoint, open_endpoint

STAGES, PEERS_A_STAGE, BATCH, ELEMENTS = 2, 2, 2, 64
RULES = Rules("soak", STAGES, BATCH, float(BATCH), lease_s=30.0, rebalance_s=0.0)
HISTORY = 16 << 10
"""Bytes of changes that the directory keeps: little, so that they are as many as they can be before the first look."""
LOOPBACK = "tcp://127.0.0.1:0"
NO_TIME = {"forward": 0.0, "backward": 0.0, "update": 0.0}


async def soak(steps: int, settled: int, looks: int) -> list[dict[str, int]]:
    """The levels after `settled` steps and at the end."""
    clock = RealClock()
    async with AsyncExitStack() as stack, Nursery() as tasks:
        coordinator = await stack.enter_async_context(await open_endpoint(LOOPBACK))
        running = [tasks.create_task(serve_directory(coordinator, clock, limits=DirectoryLimits(history=HISTORY)))]

        async def client() -> tuple[Endpoint, Directory]:
            endpoint = await stack.enter_async_context(await open_endpoint(LOOPBACK))
            return endpoint, await stack.enter_async_context(open_directory(coordinator.address, endpoint, clock))

        for number in range(STAGES * PEERS_A_STAGE):
            local, config = (
                LocalMember(f"peer{number}", *await client(), clock),
                PeerSetup(number % STAGES, threads=False),
            )
            peer = PeerProcess(local, lambda _: Relay(ELEMENTS), RULES, TimedExecutor(NO_TIME, clock), config)
            running.append(tasks.create_task(peer.run()))
        trainer = TrainerProcess(LocalMember("trainer", *await client(), clock), _data, RULES, slots=2)
        running.append(tasks.create_task(trainer.run()))
        before = await _levels(trainer.view, settled, looks)
        after = await _levels(trainer.view, steps - looks, looks)
        directory, *members = running
        for task in members:
            task.cancel()
        await asyncio.wait(members)  # they take leave of the directory, and would try that for a lease without it
        directory.cancel()
    return [asdict(before), asdict(after)]


async def _levels(view: SwarmView, step: int, looks: int) -> Levels:
    """The least levels after this step and the next ones."""
    found = []
    for each in range(looks):
        await view.wait_for(lambda each=each: view.head is not None and view.head.step > step + each)
        found.append(look())
    return least(found)


def _data(microbatch: Microbatch) -> tuple[Sequence[Any], Sequence[Any]]:
    return Relay(ELEMENTS).forward(microbatch, []), Relay(ELEMENTS).forward(microbatch, [])


def main() -> int:
    """Let the swarm train."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        print(json.dumps([runner.run(soak(**json.loads(sys.argv[1])))]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
