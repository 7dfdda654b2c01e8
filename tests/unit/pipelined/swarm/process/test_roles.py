"""A peer and a trainer that are stopped before they have joined end at once, without a member in the directory."""

import asyncio

import pytest

from pipelined.api.swarm.parties import SwarmSettings
from pipelined.api.swarm.training import UserProgram
from pipelined.api.user_optimizer import UserOptimizer
from pipelined.swarm.config import SwarmAddress
from pipelined.swarm.process.roles import Stopped, TrainerJob, serve, train
from pipelined.swarm.process.session import PeerOptions, Session
from tests.unit.pipelined.api.swarm.test_run import BATCHES, COMMON, LAYERS, sgd
from transports import new_event_loop
from transports.rpc import open_endpoint


def stopped(start):
    """Run a role, of which the address and the stop event are given, until it waits; then stop it."""

    async def story():
        async with await open_endpoint("tcp://127.0.0.1:0") as silent:
            waits, stop = asyncio.Event(), asyncio.Event()
            running = asyncio.ensure_future(start(SwarmAddress(silent.address), stop, lambda line: waits.set()))
            await waits.wait()
            stop.set()
            with pytest.raises(Stopped):
                await running

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(story())


def test_a_peer_that_waits_for_the_directory_ends_at_a_stop():
    def session(record):
        raise AssertionError("nothing was read")

    stopped(lambda address, stop, say: serve(address, session, PeerOptions(), stop=stop, say=say))


def test_a_trainer_that_waits_for_the_directory_ends_at_a_stop():
    _, training = SwarmSettings(depth=2).prepare(
        BATCHES, UserProgram(LAYERS, COMMON["loss"], lambda: UserOptimizer(sgd))
    )
    session = Session(training, training.rules(), {}, text="")
    job = TrainerJob(task=training.task, session=session, data=None, steps=1)
    stopped(lambda address, stop, say: train(address, job, None, stop=stop, on_step=None, say=say))
