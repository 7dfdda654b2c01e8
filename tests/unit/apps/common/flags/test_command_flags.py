"""Flags as the words of a command line, which give the same flags when they are parsed."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from apps.common.flags.command_flags import TextFlags, arguments_of
from apps.ravnest.__main__ import parse as ravnest
from apps.ravnest.flags.config import RavnestConfig
from apps.ravnest.flags.groups import FormingFlags
from apps.swarm.__main__ import parse as swarm
from apps.swarm.config import TrainingConfig

COORDINATOR = ["train", "--coordinator", "tcp://127.0.0.1:1"]


@dataclass(frozen=True)
class Some:
    text: TextFlags = field(default_factory=TextFlags)
    most_rows: int | None = None
    prompt: str = "ROMEO"
    tied: bool = False


def test_flags_are_written_unless_they_have_their_default():
    assert arguments_of(Some()) == []
    some = Some(TextFlags((Path("a"), Path("b")), "gpt2"), 7, "--ROMEO", True)
    assert arguments_of(some) == ["--data", "a", "b", "--tokenizer=gpt2", "--most-rows=7", "--prompt=--ROMEO", "--tied"]


@pytest.mark.parametrize(
    "config",
    [
        TrainingConfig(),
        TrainingConfig(preset="gpt2", layers=2, tied=True, stages=1, lr=1e-5, dtype="bfloat16", compress="bf16"),
        TrainingConfig(delayed_updates=True, weight_decay=0.0, squeeze="maxout"),
    ],
)
def test_what_a_swarm_trains_is_parsed_back(config):
    assert swarm([*COORDINATOR, *arguments_of(config)]).settings == config


def test_what_ravnest_trains_and_how_it_forms_clusters_is_parsed_back():
    config, forming = RavnestConfig(layers=2, steps=7), FormingFlags(clusters=2, balance=0.5, objective="rate", ahead=3)
    flags = ravnest([*COORDINATOR, *arguments_of(config), *arguments_of(forming)])
    assert (flags.settings, flags.forming) == (config, forming)
