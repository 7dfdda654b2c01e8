"""Exact sums in a swarm: one digest with any number of peers and trainers, whatever befalls them.

The fourth batch has large targets, so that its gradients do not fit the grids of the step before.
"""

import asyncio
import hashlib
import random
from dataclasses import dataclass, field
from functools import partial

import pytest
import torch
from torch import nn

from pipelined.aio.clock import run_virtual
from pipelined.api.swarm.parties import StepResults, SwarmSettings
from pipelined.api.swarm.training import UserProgram
from pipelined.api.user_optimizer import UserOptimizer
from pipelined.errors import UsageError
from pipelined.membership.connection import LocalMember
from pipelined.swarm.process.observer import SwarmObserver
from pipelined.swarm.records.committed_steps import StepsBegan
from pipelined.swarm.stages.torch_stage import TorchStage
from tests.swarm import own_model
from tests.swarm.virtual_parties import VirtualParties
from tests.virtual_time import virtual_seconds
from transports.rpc.virtual.network import VirtualNetwork

STAGES, STEPS, MICROBATCHES, WIDTH = 3, 6, 8, own_model.WIDTH
LARGE = 3
SECONDS = {"forward": 0.01, "backward": 0.02, "update": 0.005}


pytestmark = pytest.mark.usefixtures("one_thread")


def layers():
    return [own_model.linear, nn.Tanh, lambda: nn.Dropout(0.3), own_model.linear, nn.GELU, own_model.linear]


def batches():
    generator = torch.Generator().manual_seed(7)
    found = [tuple(torch.randn(2, 16, WIDTH, generator=generator)) for _ in range(STEPS)]
    return [(x, y * 1e4 if step == LARGE else y) for step, (x, y) in enumerate(found)]


def prepared(layers, batches, **settings):
    given = UserProgram(layers, nn.functional.mse_loss, partial(UserOptimizer, own_model.adam))
    return SwarmSettings(lease=1.0, **settings).prepare(batches, given)


@dataclass
class Run:
    """What a swarm trained, and how."""

    digest: str
    state: dict
    losses: list
    began: list
    repeated: list = field(default_factory=list)


async def run(training, data, *, peers, trainers=1, seed=None, steps=STEPS):
    """A run with so many peers a stage.

    Args:
        data: makes the data of one trainer.
        seed: of kills, stops, departures and moves at random moments; None: none.
    """
    draw = random.Random(seed)
    swarm = VirtualParties(VirtualNetwork(seed or 0, delay=1e-3, jitter=5e-4), training.rules())
    swarm.start_directory()
    build, balance = partial(TorchStage, training), partial(moved, draw)
    for number in range(STAGES * peers):
        swarm.start_peer(f"p{number}", build, SECONDS, number % STAGES)
    every = [swarm.start_trainer(f"t{n}", data(), 4, steps, balance=balance) for n in range(trainers)]
    local = LocalMember("observer", *swarm.client("observer"))
    observer = SwarmObserver(local, build, training.rules(), swarm.device(SECONDS, local.clock))
    watched = Run("", {}, [], [])
    async with asyncio.timeout(100), asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watch(every[0], watched))
        striking = tasks.create_task(strike(swarm, draw, partial(swarm.start_peer, build=build, seconds=SECONDS)))
        if seed is None:
            striking.cancel()
        await swarm.tasks["t0"]
        await watching
        striking.cancel()
    stages = await observer.snapshot()
    await swarm.close()
    watched.state = training.whole_state([state for _, state in stages])
    found = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(watched.state.items()):
        found.update(name.encode() + tensor.numpy().tobytes())
    watched.digest = found.hexdigest()
    return watched


async def watch(trainer, watched):
    """Note the losses, where the swarm began or rolled back, and the steps that it took again."""
    results = StepResults(lambda report: None)

    async def heads():
        seen = set()
        while True:
            head = trainer.view.head
            if head is not None and head.repeats_step and head.version not in seen:
                seen.add(head.version)
                watched.repeated.append(head.step)
            await trainer.view.next_change()

    looking = asyncio.ensure_future(heads())
    async for event in trainer.committed_steps().follow():
        results.add(event)
        if isinstance(event, StepsBegan):
            watched.began.append(event)
    looking.cancel()
    watched.losses = results.losses


def moved(draw, stages):
    """Any peer of a stage that has several moves to any other stage."""
    rich = [at for at, peers in enumerate(stages) if len(peers) > 1]
    if not rich:
        return {}
    source = draw.choice(rich)
    return {draw.choice(sorted(stages[source])): draw.choice([at for at in range(STAGES) if at != source])}


async def strike(swarm, draw, start):
    """Kill and stop peers, kill trainers, let peers leave, and start others, at random moments."""
    number = 0
    while True:
        await virtual_seconds(draw.uniform(0.02, 0.3))
        number += 1
        match draw.choice(["kill", "kill", "stop", "leave", "join", "trainer"]):
            case "kill" if spare := spared(swarm):
                swarm.kill(draw.choice(spare))
            case "stop" if spare := spared(swarm):
                swarm.network.freeze(name := draw.choice(spare))
                asyncio.get_running_loop().call_later(draw.uniform(0.2, 2.5), swarm.network.thaw, name)
            case "leave" if spare := spared(swarm):
                swarm.peers[draw.choice(spare)].peer.leave()
            case "trainer" if len(swarm.trainers) > 1:
                swarm.kill(draw.choice([name for name in swarm.trainers if name != "t0"]))
            case _:
                start(f"joined{number}", stage=draw.randrange(STAGES))


def spared(swarm):
    """The peers of which the stage has another that is at the committed step."""
    head = swarm.trainers["t0"].view.head
    replicas = {name: process.peer.replica for name, process in swarm.peers.items() if process.peer.replica}
    serving = {name: one for name, one in replicas.items() if head and one.version == head.version}
    held = [one.index for one in serving.values()]
    return sorted(name for name, one in serving.items() if held.count(one.index) > 2)


def trained(exact=True, **how):
    """A run of the model here."""
    settings = {"depth": STAGES, "microbatches": MICROBATCHES, "seed": 3, "clip": 0.5, "exact_sums": exact}
    settings["rebalance"] = 0.4 if how.get("seed") is not None else 0.0
    parties = lambda: prepared(layers(), batches(), **settings)  # noqa: E731
    return run_virtual(run(parties()[1], lambda: parties()[0].read, **how))


@pytest.fixture(scope="module")
def alone(one_thread):
    return trained(peers=1)


def test_one_peer_a_stage_takes_the_first_step_and_that_of_large_gradients_twice(alone):
    assert alone.repeated == [0, LARGE]
    assert len(alone.losses) == STEPS and len(alone.began) == 1


MORE = [pytest.param(peers, trainers, seed, marks=pytest.mark.full) for peers in (2, 3) for trainers in (1, 2, 3)
        for seed in (None, *range(2, 8))]  # fmt: skip


@pytest.mark.in_turns(2)
@pytest.mark.parametrize(("peers", "trainers", "seed"), [(2, 1, 0), (3, 3, 1), *MORE])
def test_the_parameters_have_the_same_bits_with_any_peers_trainers_and_faults(peers, trainers, seed, alone):
    found = trained(peers=peers, trainers=trainers, seed=seed)
    assert (found.digest, found.losses) == (alone.digest, alone.losses)


def test_plain_sums_do_depend_on_the_peers():
    assert trained(exact=False, peers=1, steps=1).digest != trained(exact=False, peers=2, steps=1).digest


def test_the_numbers_are_those_of_a_plain_loop():
    settings = {"depth": 2, "microbatches": own_model.MICROBATCHES, "dtype": own_model.DTYPE, "seed": own_model.SEED}
    make = lambda: prepared(own_model.layers(), own_model.batches(), exact_sums=True, rebalance=0.0, **settings)  # noqa: E731
    found = run_virtual(run(make()[1], lambda: make()[0].read, peers=1, steps=own_model.STEPS))
    own_model.assert_equal(found.losses, found.state, own_model.plain(), 1e-8)


@pytest.mark.parametrize("setting", ["compress", "compress_sums"])
def test_codecs_are_refused_by_name(setting):
    with pytest.raises(UsageError, match=f"exact_sums needs {setting} none"):
        prepared(layers(), batches(), depth=STAGES, microbatches=MICROBATCHES, exact_sums=True, **{setting: "bf16"})
