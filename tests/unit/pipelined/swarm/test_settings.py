"""The settings of a swarm have their defaults once, wherever a user gives them."""

from dataclasses import fields
from inspect import signature

import pytest

import pipelined as pp
from apps.swarm.config import TrainingConfig
from apps.swarm.flags import Local, Serve, Train
from pipelined.api.swarm.training import UserTask
from pipelined.errors import UsageError
from pipelined.swarm.peer.components import PeerSetup
from pipelined.swarm.process.roles import TrainerJob
from pipelined.swarm.process.trainer_process import TrainerProcess
from pipelined.swarm.rules import Rules
from pipelined.swarm.settings import PeerSettings, SharedSettings, TrainerSettings

KINDS = SharedSettings, PeerSettings, TrainerSettings
DEFAULTS = {each.name: each.default for kind in KINDS for each in fields(kind)}
DEFAULTS |= {f"{name}_s": DEFAULTS[name] for name in ("lease", "rebalance", "grace")}
CALLS = [pp.swarm.serve, pp.swarm.train, pp.swarm.local]
PLACES = [TrainingConfig, Serve, Train, Local, UserTask, Rules, PeerSettings, TrainerJob, TrainerProcess]


@pytest.mark.parametrize("place", [*CALLS, *PLACES], ids=lambda place: place.__qualname__)
def test_every_place_has_the_defaults_of_the_settings(place):
    defaults = {name: each.default for name, each in signature(place).parameters.items()}
    shared = defaults.keys() & DEFAULTS.keys()
    assert shared and {name: defaults[name] for name in shared} == {name: DEFAULTS[name] for name in shared}


def test_a_peer_s_grace_is_that_of_the_settings_though_it_saves_nothing_by_default():
    assert PeerSetup().grace_s == DEFAULTS["grace"] and not PeerSetup().save_every


@pytest.mark.parametrize(
    "setting, refusal",
    [
        ({"compress": "bf16"}, "--exact-sums needs --compress none (it is bf16): a codec rounds what peers send"),
        ({"compress_sums": "fp16"}, "--exact-sums needs --compress-sums none (it is fp16): a codec rounds what"),
        ({"delayed_updates": True}, "--exact-sums needs updates without delay: .*; leave --delayed-updates out"),
    ],
)
def test_what_a_swarm_cannot_do_with_exact_sums_is_refused_in_the_words_of_the_command_line(setting, refusal):
    TrainingConfig(**setting).check()
    TrainingConfig(exact_sums=True).check()
    with pytest.raises(UsageError, match=refusal.replace("(", r"\(").replace(")", r"\)")):
        TrainingConfig(exact_sums=True, **setting).check()
