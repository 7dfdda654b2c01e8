"""A saver reports what it wrote, and only that."""

import asyncio

import numpy as np
import pytest

from pipelined.aio import events
from pipelined.aio.nursery import Nursery
from pipelined.state.saver import Saver
from pipelined.state.stage_lock import stage_lock
from pipelined.state.store import DiskStore
from pipelined.state.versions import SavedStage

AT = SavedStage(5, 0, 1, "r-1")


async def saved_by(saver):
    """Save one stage; returns the events."""

    async def copy():
        return {"weight/value": np.zeros(3, np.float32)}

    events.forget()
    async with Nursery() as tasks:
        await saver.save(tasks, AT, copy)
    return [str(event) for event in events.recent()]


def test_a_save_that_another_process_is_writing_is_reported_as_skipped(tmp_path):
    disk = DiskStore(tmp_path, {"model": "toy"})
    saver = Saver(disk, 1, False, lambda: None)
    with stage_lock(tmp_path / "stage-00", "rank1", ""):
        assert asyncio.run(saved_by(saver)) == ['save skipped: stage=0 step=5 why="rank1 is saving this stage"']
    assert list(disk.saved_stages()) == [] and saver.failed == ""
    assert asyncio.run(saved_by(saver)) == ["stage saved: stage=0 step=5"]
    assert list(saver.saved_stages) == [AT]


@pytest.mark.parametrize(("every", "due"), [(2, [2, 4]), (0, [])])
def test_without_steps_between_saves_only_the_end_is_saved(tmp_path, every, due):
    saver = Saver(DiskStore(tmp_path, {"model": "toy"}), every, False, lambda: None)
    assert [step for step in range(5) if saver.due(step)] == due
    assert saver.saves and saver.published_interval == every


def test_without_a_store_nothing_is_saved():
    saver = Saver(None, 1, False, lambda: None)
    assert not saver.saves and not saver.due(1) and saver.published_interval == 0
