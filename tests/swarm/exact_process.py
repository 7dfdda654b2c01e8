"""One real process of a swarm of exact stages: `python -m tests.swarm.exact_process ROLE DIRECTORY NAME [FAULT]`.

A coordinator takes its address and its journal in the place of a directory and a name. A late peer is a started process
that joins later: a process takes longer to start than training may take to end.

A peer prints every step that it takes and its weights, and every process prints the members that are lost. A fault
names a phase, the number of times that it begins first, and a signal that the process then sends itself, or a cut of
its links: `part:2:SIGKILL`, `backward:5:SIGSTOP`, `commit:3:CUT`. So a fault always strikes in its
phase. SIGCONT ends it.
"""

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from functools import partial

from benchmarks.harness.timed_executor import TimedExecutor
from pipelined.aio.clock import RealClock
from pipelined.membership.connection import LocalMember
from pipelined.membership.directory import open_directory, serve_directory
from pipelined.state.stages import donor
from pipelined.swarm.peer import all_reduce, passes, replica, rounds, stage_state
from pipelined.swarm.peer.components import PeerSetup
from pipelined.swarm.process.peer_process import PeerProcess
from pipelined.swarm.process.trainer_process import TrainerProcess
from pipelined.swarm.records.steps import HEAD, Head
from pipelined.swarm.rules import Rules
from pipelined.swarm.trainer import peer_pool, trainer
from tests.swarm.cut import cuttable_loop
from tests.swarm.exact import ExactStage, data
from transports import new_event_loop
from transports.rpc import open_endpoint

STAGES, BATCH, STEPS = 3, 12, 24
LEASE_S = 1.0
RULES = Rules(
    model="exact", stages=STAGES, batch=BATCH, samples=BATCH, lease_s=LEASE_S, rebalance_s=0.0, codec="", sums_codec=""
)
SECONDS = {"forward": 0.004, "backward": 0.008, "update": 0.002}

PHASES = {
    "forward": (passes.Passes, "forward"),
    "backward": (passes.Passes, "backward"),
    # every other change is at the end of some work, before its reply leaves
    "acknowledged": (stage_state.Load, "_change"),
    "prepare": (rounds.RoundService, "prepare"),
    "reduce": (rounds.RoundService, "reduce"),
    "part": (all_reduce.AllReduce, "receive_part"),
    "summed": (rounds, "digest_of"),
    "commit": (replica.Replica, "follow"),
    "manifest": (donor.Donor, "manifest"),
    "chunk": (donor.Donor, "chunk"),
    "microbatch": (trainer.SwarmTrainer, "_train_microbatch"),
    "returning": (peer_pool.PeerPool, "request"),
}
ONLY = {"returning": "backward"}
"""What has to be among a call's arguments for the phase to begin."""
CUT = "CUT"


def say(*words):
    print(*words, flush=True)


def strike_at(phase, times, befall):
    """Let this befall the process when a phase begins for the n-th time."""
    owner, method = PHASES[phase]
    original, left = getattr(owner, method), [times]

    def struck(*args, **kwargs):
        left[0] -= phase not in ONLY or ONLY[phase] in [getattr(arg, "topic", None) for arg in args]
        if left[0] == 0:
            left[0] = -1
            befall()
        return original(*args, **kwargs)

    setattr(owner, method, struck)


def tell_steps():
    """Let a peer tell the weights of each step that it takes."""
    original = ExactStage.apply

    def apply(self, step, total, scale):
        original(self, step, total, scale)
        say("took", step + 1, self.index, self.weights.tobytes().hex())

    ExactStage.apply = apply


async def tell_gone(view):
    """Tell of every member that the directory has no longer."""
    known = set()
    while True:
        members = {*view.peers, *view.trainers}
        for name in sorted(known - members):
            say("gone", name)
        known = members
        await view.next_change()


async def run(process):
    """Run it, and print the members that are lost meanwhile."""
    async with asyncio.TaskGroup() as tasks:
        telling = tasks.create_task(tell_gone(process.view))
        await process.run()
        telling.cancel()


async def coordinator(address, journal):
    async with await open_endpoint(address or "tcp://127.0.0.1:0") as endpoint:
        say("at", endpoint.address)
        await serve_directory(endpoint, RealClock(), journal or None)


@asynccontextmanager
async def found(address, clock):
    async with await open_endpoint("tcp://127.0.0.1:0") as endpoint:
        async with open_directory(address, endpoint, clock) as directory:
            yield endpoint, directory


async def two_steps(directory):
    """Wait until they are committed: a peer that missed one takes only that step, and fetches nothing."""
    view = await directory.read(HEAD)
    async for changes in directory.watch(HEAD, view.revision):
        if any(Head.unpack(change.entry.value).step > 1 for change in changes if change.entry):
            return


async def peer(address, name, late=False):
    clock = RealClock()
    async with found(address, clock) as (endpoint, directory):
        if late:
            await two_steps(directory)
        stage = int(name[1]) if name[0] == "s" else None
        device = TimedExecutor(SECONDS, clock)
        process = PeerProcess(
            LocalMember(name, endpoint, directory, clock), build, RULES, device, PeerSetup(stage, threads=False)
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, process.peer.leave)
        await run(process)


def build(index):
    stage = ExactStage(index, STAGES)
    stage.index = index
    return stage


async def train(address, name):
    clock = RealClock()
    async with found(address, clock) as (endpoint, directory):
        local = LocalMember(name, endpoint, directory, clock)
        await run(TrainerProcess(local, data, RULES, slots=3, steps=STEPS))
    say("done")


def main(role, address="", name="", fault=""):
    tell_steps()
    loop = new_event_loop
    if fault:
        phase, times, how = fault.split(":")
        if how == CUT:
            made, links = cuttable_loop()
            loop, act = (lambda: made), links.cut
        else:
            act = partial(os.kill, os.getpid(), getattr(signal, how))
        strike_at(phase, int(times), lambda: (say("struck", phase, how), act()))
    late = partial(peer, late=True)
    work = {"coordinator": coordinator, "peer": peer, "late": late, "train": train}[role]
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(work(address, name))


if __name__ == "__main__":
    main(*sys.argv[1:])
