"""One process of a swarm of one wide stage, beside hivemind's: `python -m benchmarks.swarm.wide_stage ROLE …`.

It says `took STEP SAMPLES DIGEST` for each step: what the step's sum holds by the parameters themselves, as each
microbatch's gradient is one everywhere, and a digest of them. The peer that is to die does so while pieces are summed.
"""

import asyncio
import hashlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.harness.timed_executor import TimedExecutor
from pipelined.aio.clock import RealClock
from pipelined.membership.connection import LocalMember
from pipelined.membership.directory import EmbeddedDirectory, serve_directory
from pipelined.swarm.peer.all_reduce import AllReduce
from pipelined.swarm.peer.components import PeerSetup
from pipelined.swarm.process.peer_process import PeerProcess
from pipelined.swarm.process.trainer_process import TrainerProcess
from pipelined.swarm.protocol.rounds import PartTotal, SendPart
from pipelined.swarm.rules import Rules
from pipelined.swarm.stages.swarm_stage import BackwardResult, Microbatch
from transports import Block, new_event_loop
from transports.rpc import Party, open_endpoint

Task = dict[str, Any]


class Wide:
    """So many parameters that go down by one for each microbatch of a step."""

    model = "wide"
    maxima = 0

    def __init__(self, task: Task):
        self.sums, self._samples = np.zeros(task["nbytes"] // 4, np.float32), task["samples"]
        self._weights = np.zeros_like(self.sums)

    def expects(self) -> Sequence[tuple[str, tuple[int, ...]]]:
        return [("float32", (1,))]

    expects_given = expects

    def forward(self, microbatch: Microbatch, inputs: Sequence[Block]) -> Sequence[Any]:
        return [inputs[0].numpy()]

    def backward(
        self, microbatch: Microbatch, inputs: Sequence[Block], given: Sequence[Block], count: bool
    ) -> BackwardResult:
        self.sums += np.float32(count)
        return BackwardResult([inputs[0].numpy()], 0.0)

    def clear(self) -> None:
        self.sums[:] = 0

    def fits(self, total: np.ndarray) -> bool:
        return True

    def square(self, total: np.ndarray) -> float:
        return float(np.square(total, dtype=np.float64).sum())

    def apply(self, step: int, total: np.ndarray, scale: float) -> None:
        self._weights += total
        digest = hashlib.blake2b(self._weights, digest_size=8).hexdigest()
        print("took", step + 1, int(total.min()) * self._samples, digest, flush=True)

    def state(self) -> Mapping[str, Any]:
        return {"weights": self._weights}

    def load(self, state: Mapping[str, Block]) -> None:
        self._weights[:] = state["weights"].numpy()


def die_in(pieces: int) -> None:
    """Let this process end as another member brings it the n-th piece of a sum."""
    left, original = [pieces], AllReduce.receive_part

    async def receive_part(self: AllReduce, request: SendPart, sender: Party) -> PartTotal:
        left[0] -= 1
        if left[0] == 0:
            print("struck", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return await original(self, request, sender)

    AllReduce.receive_part = receive_part


def rules_of(task: Task) -> Rules:
    """One stage, and as many microbatches as make up the target."""
    batch = task["target"] // task["samples"]
    return Rules("wide", 1, batch, float(task["target"]), lease_s=task["lease_s"], rebalance_s=0.0)


async def coordinate() -> None:
    """Be the directory."""
    async with await open_endpoint("tcp://127.0.0.1:0") as endpoint:
        print("at", endpoint.address, flush=True)
        await serve_directory(endpoint, RealClock())


async def serve(address: str, name: str, task: Task) -> None:
    """Be a peer."""
    clock = RealClock()
    async with await open_endpoint("tcp://127.0.0.1:0") as endpoint:
        device = TimedExecutor({"backward": task["microbatch_s"]}, clock)
        directory = EmbeddedDirectory(endpoint, address, clock)
        local = LocalMember(name, endpoint, directory, clock)
        await PeerProcess(local, lambda _: Wide(task), rules_of(task), device, PeerSetup(0)).run()


async def train(address: str, name: str, task: Task) -> None:
    """Be the trainer."""
    clock, one = RealClock(), np.ones(1, np.float32)
    async with await open_endpoint("tcp://127.0.0.1:0") as endpoint:
        directory, slots, steps = EmbeddedDirectory(endpoint, address, clock), 2 * task["peers"], task["epochs"]
        feed = lambda _: ([one], [one])  # noqa: E731
        local = LocalMember(name, endpoint, directory, clock)
        await TrainerProcess(local, feed, rules_of(task), slots=slots, steps=steps).run()
    print("done", flush=True)


def main(role: str, address: str = "", name: str = "", said: str = "{}") -> None:
    """Play one role."""
    task = json.loads(said)
    if task.get("dies"):
        die_in(task["dies"])
    work = {
        "coordinator": lambda: coordinate(),
        "peer": lambda: serve(address, name, task),
        "train": lambda: train(address, name, task),
    }
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(work[role]())


if __name__ == "__main__":
    main(*sys.argv[1:])
