"""`pp.swarm` ends in one message and an exit code: 2 if the user can correct the error, 1 if not."""

import asyncio
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import pipelined as pp
from pipelined.aio.clock import RealClock
from pipelined.api.swarm import run
from pipelined.api.swarm.parties import SwarmSettings, run_user_peer
from pipelined.api.swarm.run import serve, train
from pipelined.api.swarm.training import UserProgram, UserTraining
from pipelined.api.user_optimizer import UserOptimizer
from pipelined.membership.connection import connected
from pipelined.membership.directory import CutOff, WrongKey, serve_directory
from pipelined.membership.task_record import publish_task
from pipelined.state.store import DiskStore
from pipelined.state.versions import SavedStage
from pipelined.swarm.peer.device_watchdog import DeviceStalled
from pipelined.swarm.process.session import PeerOptions
from pipelined.swarm.rules import SwarmAddress
from transports import Nursery, new_event_loop
from transports.rpc import open_endpoint


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


LAYERS = [lambda: nn.Linear(4, 4), lambda: nn.Linear(4, 4)]
BATCHES = [(torch.zeros(8, 4), torch.zeros(8, 4))]
COMMON = {"loss": nn.functional.mse_loss, "optimizer": sgd, "coordinator": "tcp://127.0.0.1:9"}


def ended(capsys, work):
    """The exit code and the line of a call that ends."""
    with pytest.raises(SystemExit) as end:
        work()
    (line,) = capsys.readouterr().err.splitlines()
    return end.value.code, line


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (pp.UsageError("no"), 2),
        (WrongKey("another cluster key"), 2),
        (CutOff("no reply"), 1),
        (DeviceStalled("the device is stuck"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_expected_error_ends_in_one_line_and_a_code(capsys, error, code):
    async def fail(stop):
        raise error

    assert ended(capsys, lambda: run._run(fail)) == (code, f"pipelined.swarm: error: {error}")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"save_every": -5}, "save_every must be at least 0 (it is -5)"),
        ({"grace": -1.0}, "grace must be at least 0 (it is -1.0)"),
        ({"device": "cuda:99"}, "no device here is called 'cuda:99'"),
        ({"coordinator": "tcp://127.0.0.1:99999"}, "coordinator tcp://127.0.0.1:99999 has no port from 1 to 65535"),
    ],
    ids=["save_every", "grace", "device", "port"],
)
def test_wrong_settings_of_a_peer_are_refused_before_it_looks_for_the_swarm(capsys, setting, message):
    code, line = ended(capsys, lambda: serve(LAYERS, **{**COMMON, **setting}))
    assert code == 2 and message in line


def test_an_argument_that_a_local_swarm_lacks_is_named_with_the_function_that_was_called():
    with pytest.raises(TypeError, match=r"^local\(\) got an unexpected keyword argument 'resume'"):
        run.local(LAYERS, BATCHES, loss=COMMON["loss"], optimizer=sgd, depth=2, resume=True)


def test_a_trainer_without_slots_is_refused(capsys):
    """It sent no microbatch, and waited for ever."""
    code, line = ended(capsys, lambda: train(LAYERS, BATCHES, depth=2, slots=0, **COMMON))
    assert code == 2 and "slots must be at least 1 (it is 0)" in line


def test_a_peer_refuses_a_checkpoint_directory_with_another_model_s_stages(tmp_path):
    DiskStore(tmp_path, {"model": "another"}).save(
        SavedStage(3, 0, 1, "a"), {"0.weight/value": np.zeros(4, np.float32)}
    )
    given = UserProgram(LAYERS, COMMON["loss"], partial(UserOptimizer, sgd))
    _, training = SwarmSettings(depth=2).prepare(BATCHES, given)

    async def refused():
        async with await open_endpoint("tcp://127.0.0.1:0") as server, Nursery() as tasks:
            serving = tasks.create_task(serve_directory(server, RealClock()))
            async with connected(server.address) as (_, directory):
                await publish_task(directory, training.task)
            address, options = SwarmAddress(server.address), PeerOptions(checkpoint=tmp_path)
            with pytest.raises(pp.UsageError, match=r"holds stages of another model \(1 of 1\)"):
                await run_user_peer(partial(UserTraining, given), address, options, stop=asyncio.Event(), say=str)
            serving.cancel()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(refused())
