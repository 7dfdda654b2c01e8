"""One real process of a swarm on emulated devices: `python -m benchmarks.swarm.relay ROLE ADDRESS NAME JSON`.

Real endpoints, directory, peers and trainers; only what a device computes is left out. The trainer says `step` whenever
it sees a step stand.
"""

import asyncio
import json
import sys
from typing import Any

import numpy as np

from benchmarks.harness.punctual import PunctualClock
from benchmarks.harness.timed_executor import TimedExecutor
from benchmarks.swarm.devices import Relay, Work, device_seconds
from pipelined.aio.clock import RealClock
from pipelined.membership.connection import LocalMember
from pipelined.membership.directory import EmbeddedDirectory, serve_directory
from pipelined.swarm.peer.components import PeerSetup
from pipelined.swarm.process.peer_process import PeerProcess
from pipelined.swarm.process.trainer_process import TrainerProcess
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import Rules
from transports import new_event_loop
from transports.rpc import open_endpoint

LEASE_S = 10.0
"""Long: no process fails here, and 2 cores run many of them."""


def rules_of(task: dict[str, Any]) -> Rules:
    """What all processes of the swarm have alike."""
    batch = task["microbatches"]
    return Rules("emulated", task["depth"], batch, float(batch), lease_s=LEASE_S, rebalance_s=0.0, codec=task["codec"])


async def coordinate() -> None:
    """Be the directory."""
    async with await open_endpoint("tcp://127.0.0.1:0") as endpoint:
        print("at", endpoint.address, flush=True)
        await serve_directory(endpoint, RealClock())


async def serve(address: str, name: str, task: dict[str, Any]) -> None:
    """Be a peer; its name is STAGE-NUMBER."""
    stage, work = int(name.partition("-")[0]), Work(task["forward_s"], task["backward_s"])
    seconds = device_seconds(work, stage == task["depth"] - 1, 1.0)
    async with await open_endpoint("tcp://127.0.0.1:0") as endpoint:
        directory, device = EmbeddedDirectory(endpoint, address, RealClock()), TimedExecutor(seconds, PunctualClock())
        elements = task["activation_bytes"] // 4
        local = LocalMember(name, endpoint, directory, RealClock())
        process = PeerProcess(local, lambda _: Relay(elements), rules_of(task), device, PeerSetup(stage))
        await process.run()


async def train(address: str, name: str, task: dict[str, Any]) -> None:
    """Be the trainer."""
    tensor = np.arange(task["activation_bytes"] // 4, dtype=np.float32)
    async with await open_endpoint("tcp://127.0.0.1:0") as endpoint:
        directory = EmbeddedDirectory(endpoint, address, RealClock())
        local, feed = LocalMember(name, endpoint, directory, RealClock()), lambda _: ([tensor], [tensor])
        process = TrainerProcess(local, feed, rules_of(task), slots=task["slots"], steps=task["steps"])
        telling = asyncio.create_task(_tell_steps(process.view))
        await process.run()
        telling.cancel()


async def _tell_steps(view: SwarmView) -> None:
    seen = 0
    while True:
        await view.wait_for(lambda seen=seen: view.head is not None and view.head.step > seen)
        seen = view.head.step
        print("step", seen, flush=True)


def main(role: str, address: str = "", name: str = "", task: str = "{}") -> None:
    """Play one role."""
    work = {
        "coordinator": lambda: coordinate(),
        "peer": lambda: serve(address, name, json.loads(task)),
        "train": lambda: train(address, name, json.loads(task)),
    }
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(work[role]())


if __name__ == "__main__":
    main(*sys.argv[1:])
