"""A peer and a trainer that are stopped before they have joined, or after the last step, end at once."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from pipelined.api.swarm.parties import SwarmSettings
from pipelined.api.swarm.training import UserProgram
from pipelined.api.user_optimizer import UserOptimizer
from pipelined.swarm.process import roles
from pipelined.swarm.process.roles import Stopped, TrainerJob, serve, train
from pipelined.swarm.process.session import SwarmAddress, SwarmSession
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

    stopped(lambda address, stop, say: serve(address, session, None, device="cpu", stop=stop, say=say))


def test_a_trainer_that_waits_for_the_directory_ends_at_a_stop():
    _, training = SwarmSettings(depth=2).prepare(
        BATCHES, UserProgram(LAYERS, COMMON["loss"], lambda: UserOptimizer(sgd))
    )
    session = SwarmSession(training, training.rules(), {}, text="")
    job = TrainerJob(task=training.task, session=session, data=None, steps=1)
    stopped(lambda address, stop, say: train(address, job, None, stop=stop, on_step=None, say=say))


@pytest.mark.virtual
async def test_a_stop_ends_a_trainer_that_waits_for_the_model(monkeypatch):
    """A stage without a peer has no state to fetch, so this wait has no other end."""

    @asynccontextmanager
    async def joined(*arguments, **options):
        yield SimpleNamespace(process=None, observer=None)

    async def trained(*arguments):
        return True

    async def fetch(observer):
        stop.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(roles, "joined_trainer", joined)
    monkeypatch.setattr(roles, "run_trainer", trained)
    stop, lines = asyncio.Event(), []
    assert await train(SwarmAddress("tcp://a:1"), None, fetch, stop=stop, on_step=None, say=lines.append) is None
    assert lines == ["stopped before the model was fetched and written"]
