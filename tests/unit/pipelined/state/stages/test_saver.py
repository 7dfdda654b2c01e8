"""A saver reports what it wrote, and only that."""

import asyncio
import fcntl
from contextlib import ExitStack

import numpy as np
import pytest

from pipelined.process.reporting import events
from pipelined.state.stages.saver import Saver
from pipelined.state.stages.stage_lock import stage_lock
from pipelined.state.stages.store import DiskStore
from pipelined.state.stages.versions import SavedStage, SavedStages, undamaged_stages
from pipelined.state.tensor_specs import specs_of
from transports import Nursery

AT = SavedStage(5, 0, 1, "r-1")


async def saved_by(saver):
    """Save one stage; returns the events."""

    async def copy():
        return {"weight/value": np.zeros(3, np.float32)}

    events._events.clear()
    async with Nursery() as tasks:
        await saver.save(tasks, AT, copy)
    return [str(event) for event in events.recent()]


def test_a_save_that_another_process_is_writing_is_reported_as_skipped(tmp_path):
    disk = DiskStore(tmp_path, {"model": "toy"})
    saver = Saver(disk, 1, False, lambda: None)
    with stage_lock(tmp_path / "stage-00", "rank1", ""):
        assert asyncio.run(saved_by(saver)) == ['save skipped: stage=0 step=5 why="rank1 is saving this stage"']
    assert list(disk.saved_stages()) == [] and saver.failure == ""
    assert asyncio.run(saved_by(saver)) == ["stage saved: stage=0 step=5"]
    assert list(saver.saved_stages) == [AT]


@pytest.mark.parametrize(("every", "due"), [(2, [2, 4]), (0, [])])
def test_without_steps_between_saves_only_the_end_is_saved(tmp_path, every, due):
    saver = Saver(DiskStore(tmp_path, {"model": "toy"}), every, False, lambda: None)
    assert [step for step in range(5) if saver.is_due(step)] == due
    assert saver.saves and saver.published_interval == every


def test_without_a_store_nothing_is_saved():
    saver = Saver(None, 1, False, lambda: None)
    assert not saver.saves and not saver.is_due(1) and saver.published_interval == 0


STATES = [{"a/value": np.arange(3, dtype=np.float32)}, {"b/value": np.ones(2, np.float32)}]


def found_by(saver, step, stage):
    """The names of the tensors of a stage that a saver finds."""
    found = asyncio.run(saver.find(SavedStage(step, 0, 2, "r-1").version, specs_of(STATES[stage])))
    return None if found is None else [*found]


def test_a_damaged_stage_is_reported_once_and_not_listed_any_more(tmp_path):
    disk = DiskStore(tmp_path, {"model": "toy"})
    for step in (5, 10):
        for stage, state in enumerate(STATES):
            disk.save(SavedStage(step, stage, 2, "r-1"), state)
    file = next((tmp_path / "stage-00" / "step-00000010").glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1] + b"\7")
    saver, other = (Saver(disk, 1, False, lambda: None) for _ in range(2))
    events._events.clear()
    assert found_by(saver, 10, 0) is None and found_by(saver, 10, 0) is None
    (event,) = map(str, events.recent())
    assert event.startswith("save damaged: stage=0 step=10 why=") and "not the bytes that were saved" in event
    assert [each[:2] for each in saver.saved_stages] == [(5, 0), (5, 1), (10, 1)]
    assert found_by(saver, 10, 1) == ["b/value"] and found_by(saver, 5, 0) == ["a/value"]
    asyncio.run(other.list_saved())
    assert len(other.saved_stages) == 4
    records = [SavedStages.unpack(each.record().pack()) for each in (saver, other)]
    assert set(undamaged_stages(records)) == set(saver.saved_stages), "another peer of the same directory lists it yet"


def test_a_damaged_stage_that_is_saved_again_is_listed_again(tmp_path):
    saver = Saver(DiskStore(tmp_path, {"model": "toy"}), 1, False, lambda: None)
    asyncio.run(saved_by(saver))
    file = next((tmp_path / "stage-00").rglob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1] + b"\7")
    weight = {"weight/value": np.zeros(3, np.float32)}
    assert asyncio.run(saver.find(AT.version, specs_of(weight))) is None and list(saver.saved_stages) == []
    asyncio.run(saved_by(saver))
    assert list(saver.saved_stages) == [AT] and not saver.record().damaged
    assert [*asyncio.run(saver.find(AT.version, specs_of(weight)))] == [*weight]


def test_a_stage_that_is_not_here_is_reported_and_hides_no_other(tmp_path):
    disk = DiskStore(tmp_path, {"model": "toy"})
    disk.save(SavedStage(5, 1, 2, "r-1"), STATES[1])
    saver = Saver(disk, 1, False, lambda: None)
    events._events.clear()
    assert found_by(saver, 5, 0) is None and found_by(saver, 5, 0) is None
    (event,) = map(str, events.recent())
    assert event.startswith("save not read: step=5 why=") and "does not hold a/value" in event
    assert found_by(saver, 5, 1) == ["b/value"]


def test_a_lock_on_a_file_that_was_removed_meanwhile_does_not_count(tmp_path, monkeypatch):
    """A peer waits at the file of one that died; another removes the file, and locks the next: both would write."""
    path, lock = tmp_path / "saving", fcntl.flock

    def remove_first(file, how):
        monkeypatch.setattr("fcntl.flock", lock)
        path.unlink()
        locked = entered.enter_context(stage_lock(tmp_path, "another", ""))
        assert locked == ""
        lock(file, how)

    with ExitStack() as entered:
        monkeypatch.setattr("fcntl.flock", remove_first)
        assert entered.enter_context(stage_lock(tmp_path, "me", "")) not in ("", None)
        assert path.read_text() == "another"
