"""What rank 0 tells of joining a swarm of ranks, and what it saves at the end."""

import shlex
from pathlib import Path

import pytest

from apps.gpt2.config import GPT2Flags
from apps.gpt2.swarm import lead
from apps.gpt2.swarm.lead import joining, save_stages
from apps.swarm.__main__ import parse
from pipelined.errors import UsageError
from pipelined.state.versions import SavedStage

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


class BusyStore:
    """A store of which another process is saving a stage for some attempts."""

    def __init__(self, attempts: int):
        self.left, self.saved = attempts, []

    def save(self, saved: SavedStage, state: dict) -> bool:
        self.left -= 1
        if self.left < 0:
            self.saved.append(saved)
        return self.left < 0


STAGES = [(SavedStage(7, stage, 2, "a"), {}) for stage in (0, 1)]


async def test_a_stage_that_a_peer_is_saving_is_saved_after_it(monkeypatch):
    monkeypatch.setattr(lead, "RETRY_S", 0)
    store = BusyStore(3)
    await save_stages(store, STAGES)
    assert store.saved == [saved for saved, _ in STAGES]


async def test_a_stage_that_is_not_saved_is_no_success(monkeypatch):
    monkeypatch.setattr(lead, "RETRY_S", 0)
    store = BusyStore(10**6)
    with pytest.raises(UsageError, match=r"stage 0 of step 7 was not saved: .* for 0 s; end that process"):
        await save_stages(store, STAGES)
    assert store.left == 10**6 - lead.ATTEMPTS
