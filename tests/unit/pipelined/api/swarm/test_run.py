"""`pp.swarm` ends in one message and an exit code: 2 if the user can correct the error, 1 if not."""

import asyncio
import re
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
from pipelined.state.stages.store import DiskStore
from pipelined.state.stages.versions import SavedStage
from pipelined.swarm.peer.device_watchdog import DeviceStalled
from pipelined.swarm.process.session import SwarmAddress
from pipelined.swarm.settings import PeerSettings
from transports import Nursery, new_event_loop
from transports.rpc import open_endpoint


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


LAYERS = [lambda: nn.Linear(4, 4), lambda: nn.Linear(4, 4)]
BATCHES = [(torch.zeros(8, 4), torch.zeros(8, 4))]
COMMON = {"loss": nn.functional.mse_loss, "optimizer": sgd, "coordinator": "tcp://127.0.0.1:9"}


@pytest.mark.parametrize("error", [pp.UsageError("no"), WrongKey("no")], ids=lambda value: type(value).__name__)
def test_an_error_that_the_user_can_correct_is_raised_as_one(capsys, error):
    async def fail(stop):
        raise error

    with pytest.raises(pp.UsageError, match=r"^no$"):
        run._run(fail)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("error", [CutOff("no"), DeviceStalled("no")], ids=lambda value: type(value).__name__)
def test_another_expected_error_is_printed_and_fails_the_job_with_code_1(capsys, error):
    async def fail(stop):
        raise error

    with pytest.raises(pp.JobFailed, match=r"^no$") as ended:
        run._run(fail)
    assert (ended.value.code, capsys.readouterr().err) == (1, "pipelined.swarm: error: no\n")


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
def test_wrong_settings_of_a_peer_are_refused_before_it_looks_for_the_swarm(setting, message):
    with pytest.raises(pp.UsageError, match=re.escape(message)):
        serve(LAYERS, **{**COMMON, **setting})


def test_an_argument_that_a_local_swarm_lacks_is_named_with_the_function_that_was_called():
    with pytest.raises(TypeError, match=r"^local\(\) got an unexpected keyword argument 'resume'"):
        run.local(LAYERS, BATCHES, loss=COMMON["loss"], optimizer=sgd, depth=2, resume=True)


def test_a_trainer_without_slots_is_refused():
    """It sent no microbatch, and waited for ever."""
    with pytest.raises(pp.UsageError, match=r"slots must be at least 1 \(it is 0\)"):
        train(LAYERS, BATCHES, depth=2, slots=0, **COMMON)


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
            address, options = SwarmAddress(server.address), PeerSettings(checkpoint=tmp_path)
            with pytest.raises(pp.UsageError, match=r"holds stages of another model \(1 of 1\)"):
                await run_user_peer(partial(UserTraining, given), address, options, stop=asyncio.Event(), say=str)
            serving.cancel()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(refused())
