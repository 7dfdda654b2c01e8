"""The rows of --metrics reach their file, TensorBoard's files and a run of Weights & Biases."""

import asyncio
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from apps.common.run.trackers import append, check_trackers, numbers, opened_trackers
from apps.gpt2.config import GPT2Flags
from pipelined.errors import UsageError
from tests.absent import absent

ROWS = [{"step": 0, "loss": 2.5, "staleness": [0, 1.5]}, {"step": 1, "loss": 2.0, "grad_norm": None, "digest": "ab"}]


def test_numbers_are_named_and_texts_and_nothing_are_left_out():
    assert numbers(ROWS[0]) == {"loss": 2.5, "staleness/0": 0.0, "staleness/1": 1.5}
    assert numbers(ROWS[1]) == {"loss": 2.0}


async def written(flags, shown=True):
    async with opened_trackers(flags, shown) as trackers:
        for tracker in trackers:
            for row in ROWS:
                tracker.write(row)
        return len(trackers)


@pytest.mark.filterwarnings("default")
def test_tensorboard_reads_every_number_at_its_step(tmp_path):
    if find_spec("tensorboard") is None:
        absent("tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert asyncio.run(written(GPT2Flags(tensorboard=tmp_path))) == 1
    found = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in found.Scalars("loss")] == [(0, 2.5), (1, 2.0)]
    assert [event.value for event in found.Scalars("staleness/1")] == [1.5]


class FakeRun:
    def __init__(self, **about):
        self.about, self.rows, self.over = about, [], False

    def log(self, row, step):
        self.rows.append((step, row))

    def finish(self):
        self.over = True


def test_weights_and_biases_gets_the_flags_every_number_and_the_end(monkeypatch):
    runs = []
    fake = ModuleType("wandb")
    fake.init = lambda **about: runs.append(FakeRun(**about)) or runs[-1]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    assert asyncio.run(written(GPT2Flags(wandb="plays", steps=7))) == 1
    (run,) = runs
    assert run.about["project"] == "plays" and run.about["config"]["steps"] == 7
    assert run.rows == [(row["step"], numbers(row)) for row in ROWS] and run.over


def test_ranks_that_report_nothing_open_nothing(tmp_path):
    assert asyncio.run(written(GPT2Flags(tensorboard=tmp_path / "none", wandb="plays"), shown=False)) == 0
    assert not (tmp_path / "none").exists()


def test_a_tracker_that_is_not_installed_is_refused_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr("apps.common.run.trackers.find_spec", lambda name: None)
    check_trackers(GPT2Flags())
    with pytest.raises(UsageError, match=r"--wandb plays needs the package wandb; pip install 'pipelined\[wandb\]'"):
        check_trackers(GPT2Flags(wandb="plays"))


def test_rows_are_added_to_what_is_there(tmp_path):
    append(tmp_path / "rows")
    append(tmp_path / "rows", {"step": 0})
    append(tmp_path / "rows", {"step": 1}, {"step": 2})
    assert [json.loads(line)["step"] for line in (tmp_path / "rows").read_text().splitlines()] == [0, 1, 2]


def test_a_full_disk_is_reported_with_the_file_and_the_remedy():
    said = r"cannot write the metrics to /dev/full \(No space left on device\); make room there, or name another"
    with pytest.raises(UsageError, match=said):
        append(Path("/dev/full"), {"step": 0})
