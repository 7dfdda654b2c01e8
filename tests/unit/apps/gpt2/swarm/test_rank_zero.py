"""What rank 0 tells of joining a swarm of ranks, and what it saves at the end."""

import asyncio
import shlex
from pathlib import Path

import numpy as np
import pytest

from apps.gpt2.config import GPT2Flags
from apps.gpt2.swarm import rank_zero
from apps.gpt2.swarm.rank_zero import join_command, save_stages
from apps.swarm.__main__ import parse
from pipelined.errors import UsageError
from pipelined.process.reporting import events
from pipelined.state.stages.stage_lock import stage_lock
from pipelined.state.stages.store import DiskStore
from pipelined.state.stages.versions import SavedStage

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
    flags = parse(shlex.split(join_command(COORDINATOR, config))[3:])
    assert flags.address.coordinator == COORDINATOR
    assert (flags.checkpoint, flags.save_every) == saves


STAGES = [(SavedStage(7, stage, 2, "a"), {"weight/value": np.full(3, stage, np.float32)}) for stage in (0, 1)]
MANY = 500  # attempts: the wait had an end after 300
SAVED = [saved for saved, _ in STAGES]


@pytest.fixture
def looks(monkeypatch):
    """The names that are looked up in the directory, which lists every name but those that "suspended" begins."""
    monkeypatch.setattr(rank_zero, "RETRY_S", 0)

    async def is_listed(name: str) -> bool:
        is_listed.names.append(name)
        if len(is_listed.names) == MANY:
            is_listed.many.set()
        return not name.startswith("suspended")

    is_listed.names, is_listed.many = [], asyncio.Event()
    return is_listed


async def test_a_stage_that_a_peer_is_saving_is_saved_after_it_however_long_it_takes(tmp_path, looks):
    store = DiskStore(tmp_path, {"model": "toy"}, name="rank0")
    with stage_lock(tmp_path / "stage-01", "rank5", ""):
        saving = asyncio.create_task(save_stages(store, STAGES, looks))
        await looks.many.wait()
        assert not saving.done() and [*store.saved_stages()] == SAVED[:1]
    await saving
    assert [*store.saved_stages()] == SAVED and set(looks.names) == {"rank5"}


async def test_a_suspended_peer_that_the_directory_lists_no_more_is_not_waited_for(tmp_path, looks):
    events._events.clear()
    store = DiskStore(tmp_path, {"model": "toy"}, name="rank0")
    with stage_lock(tmp_path / "stage-00", "suspended-4", ""):
        await save_stages(store, STAGES, looks)
        assert [*store.saved_stages()] == SAVED
    assert looks.names == ["suspended-4"]
    assert [str(event) for event in events.recent()] == [
        'saver dismissed: stage=0 step=7 peer=suspended-4 why="its lease ended"'
    ]
    assert store.save(SavedStage(8, 0, 2, "a"), STAGES[0][1]) == ""


async def test_a_stage_that_cannot_be_written_is_no_success(tmp_path, looks):
    (tmp_path / "stage-00").write_text("no directory")
    with pytest.raises(UsageError, match="stage-00"):
        await save_stages(DiskStore(tmp_path, {"model": "toy"}), STAGES, looks)
