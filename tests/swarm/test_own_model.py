"""A user's model in a swarm equals a plain loop in float64, also when a peer is killed."""

import asyncio
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pytest
import torch
from torch import nn

import pipelined as pp
from pipelined.aio.clock import run_virtual
from pipelined.api.swarm.parties import StepData, StepResults, SwarmSettings
from pipelined.api.swarm.training import UserProgram
from pipelined.api.user_optimizer import UserOptimizer
from pipelined.membership.connection import LocalMember
from pipelined.swarm.process.observer import SwarmObserver
from pipelined.swarm.stages.swarm_stage import Microbatch
from pipelined.swarm.stages.torch_stage import TorchStage
from tests.launching import ROOT
from tests.swarm.own_model import (
    DTYPE,
    MICROBATCHES,
    SEED,
    STEPS,
    adam,
    assert_equal,
    batches,
    halved,
    layers,
    momentum,
    plain,
)
from tests.swarm.virtual_parties import VirtualParties
from transports.rpc.virtual.network import VirtualNetwork

SECONDS = {"forward": 0.01, "backward": 0.02, "update": 0.005}
LOSS = nn.functional.mse_loss
COMMON = {"depth": 2, "microbatches": MICROBATCHES, "dtype": DTYPE, "seed": SEED}
EXACT = {**COMMON, "exact_sums": True}


async def trained_virtually(peers, killed, optimizer, lr_scheduler, clip):
    """Losses and state of a swarm with so many peers a stage; one is killed after the second step."""
    given = UserProgram(layers(), LOSS, partial(UserOptimizer, optimizer, scheduler=lr_scheduler))
    data, training = SwarmSettings(clip=clip, lease=1.0, rebalance=0.0, **COMMON).prepare(batches(), given)
    swarm = VirtualParties(VirtualNetwork(1, delay=1e-3), training.rules())
    swarm.start_directory()
    build = partial(TorchStage, training)
    for stage in range(2):
        for number in range(peers):
            swarm.start_peer(f"p{stage}{number}", build, SECONDS, stage)
    trainer, results = swarm.start_trainer("t", data.read, slots=4, steps=STEPS), StepResults(lambda report: None)
    async for event in trainer.committed_steps().follow():
        results.add(event)
        if len(results.losses) == 2 and killed in swarm.peers:
            swarm.kill(killed)
    local = LocalMember("observer", *swarm.client("observer"))
    stages = await SwarmObserver(local, build, training.rules(), swarm.device(SECONDS, local.clock)).snapshot()
    await swarm.close()
    return results.losses, training.whole_state([state for _, state in stages])


@pytest.mark.parametrize(
    ("peers", "killed", "settings"),
    [
        (1, "", (adam, None, 0.0)),
        (2, "", (adam, None, 0.05)),
        (2, "p01", (adam, None, 0.0)),
        (2, "p11", (momentum, halved, 0.0)),
    ],
)
def test_a_swarm_trains_a_user_s_model_as_a_plain_loop_does(peers, killed, settings):
    assert_equal(*run_virtual(trained_virtually(peers, killed, *settings)), plain(*settings))


def test_a_whole_swarm_in_one_process_trains_the_same_and_ends_with_the_last_step():
    """Its directory once ended before its peers, each of which then waited a lease for the answer to its farewell."""
    ends = []
    arguments = {"peers": 3, "lease": 30.0, "report": lambda step: ends.append(time.monotonic()), **COMMON}
    done = pp.swarm.local(layers(), batches(), loss=LOSS, optimizer=adam, **arguments)
    assert time.monotonic() - ends[-1] < 15.0
    assert done.steps == STEPS and not done.stopped
    assert_equal(done.losses, done.state_dict(), plain())


PEER = """
import sys
from torch import nn
import pipelined as pp
from tests.swarm.own_model import adam, layers
pp.swarm.serve(layers(), loss=nn.functional.mse_loss, optimizer=adam, coordinator=sys.argv[1], name=sys.argv[2])
"""
MANY = 40
"""Steps that a test with processes trains: they last until a stage has two peers, one of which is killed."""


@pytest.mark.in_turns(4)
@pytest.mark.timeout(120)
def test_a_peer_s_process_is_killed_and_training_goes_on():
    """Three peers for two stages, and the trainer in this process. With exact sums its death changes no bit."""
    serving, killed, have_spare = dict[str, str](), list[str](), threading.Event()
    with ExitStack() as stack:
        env = {**os.environ, "OMP_NUM_THREADS": "1"}

        def start(*words):
            settings = {"stdout": subprocess.PIPE, "text": True, "cwd": ROOT, "env": env}
            process = stack.enter_context(subprocess.Popen([sys.executable, "-u", *words], **settings))
            stack.callback(process.kill)
            return process

        def listen(name):
            for line in peers[name].stdout:
                if found := re.fullmatch(r"\w+: (stage \d): (.*)\n", line):
                    serving[name] = found[1] if found[2] == "serves" else ""
                    if one_of_two():
                        have_spare.set()

        def one_of_two():
            """A peer that serves a stage with another one, or none."""
            at = [serving.get(name, "") for name in peers]
            return next((name for name in peers if at.count(serving.get(name) or name) == 2), None)

        def report(step):
            if not killed and step.step > 1 and (spare := one_of_two()):
                killed.append(spare)
                peers[spare].kill()
            elif not killed:
                have_spare.wait(0.8)  # the third peer may start late, and the trainer's lease is longer

        directory = start("-m", "pipelined", "directory")
        coordinator = directory.stdout.readline().split()[-1]
        peers = {name: start("-c", PEER, coordinator, name) for name in ("a", "b", "c")}
        threads = stack.enter_context(ThreadPoolExecutor(len(peers)))
        for name in peers:
            threads.submit(listen, name)
        arguments = {"coordinator": coordinator, "lease": 4.0, "rebalance": 0.0, "say": lambda line: None, **EXACT}
        done = pp.swarm.train(layers(), batches(MANY), loss=LOSS, optimizer=adam, report=report, **arguments)
        for process in peers.values():
            process.kill()
    assert killed and done.steps == MANY
    assert_equal(done.losses, done.state_dict(), plain(steps=MANY), 1e-8)
    alone = pp.swarm.local(layers(), batches(MANY), loss=LOSS, optimizer=adam, peers=2, **EXACT)
    assert alone.losses == done.losses
    assert all(torch.equal(value, done.state_dict()[name]) for name, value in alone.state_dict().items())


def test_batches_are_read_again_after_a_rollback():
    async def read(data, *steps):
        return [await data(Microbatch(step, 0)) for step in steps]

    data = StepData(batches(9), MICROBATCHES, DTYPE)
    _, again = asyncio.run(read(data, 8, 0))
    assert (again[0][0] == data.first_microbatch()[0]).all()
    once = StepData(iter(batches(9)), MICROBATCHES, DTYPE)
    with pytest.raises(pp.UsageError, match=r"step 0 is computed again.*give a list"):
        asyncio.run(read(once, 8, 0))


def test_the_event_loop_goes_on_while_a_batch_is_read():
    """A rollback read 390 batches again on the loop: no heartbeat came within the lease, and the trainer was out."""
    goes_on = threading.Event()

    class Slow:
        def __iter__(self):
            yield batches(2)[0]
            assert goes_on.wait(20)
            yield batches(2)[1]

    async def main():
        data = StepData(Slow(), MICROBATCHES, DTYPE)
        asyncio.get_running_loop().call_soon(goes_on.set)
        return await data(Microbatch(1, 0))

    inputs, _ = asyncio.run(main())
    assert len(inputs[0]) * MICROBATCHES == len(batches(2)[1][0])
