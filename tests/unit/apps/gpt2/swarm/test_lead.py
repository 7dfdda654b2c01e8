"""What rank 0 tells of joining a swarm of ranks."""

import shlex
from pathlib import Path

import pytest

from apps.gpt2.config import GPT2Flags
from apps.gpt2.swarm.lead import joining
from apps.swarm.__main__ import parse

COORDINATOR = "tcp://10.0.0.1:4700"


@pytest.mark.parametrize(
    "config, saves",
    [
        (GPT2Flags(checkpoint=Path("my runs/a"), save_every=5), (Path("my runs/a").absolute(), 5)),
        (GPT2Flags(checkpoint=Path("runs")), (Path("runs").absolute(), 0)),
        (GPT2Flags(), (None, 50)),
    ],
)
def test_a_peer_that_joins_by_the_command_that_is_reported_saves_as_the_ranks_do(config, saves):
    flags = parse(shlex.split(joining(COORDINATOR, config))[3:])
    assert flags.address.coordinator == COORDINATOR
    assert (flags.checkpoint, flags.save_every) == saves
