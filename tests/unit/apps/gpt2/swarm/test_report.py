"""What rank 0 tells of a swarm's steps: each once, with its evaluation, however fast they follow one another."""

import asyncio
import json
from dataclasses import replace

import pytest

from apps.gpt2.report import reporting
from apps.gpt2.swarm.report import Busy, Log
from pipelined.aio.clock import RealClock
from pipelined.directory import Change, CutOff, Entry, FellBehind, View
from pipelined.swarm.config import Rules
from pipelined.swarm.records import EVALUATED, HEAD, Evaluated, Head
from pipelined.training.optimizer import OptimizerConfig

RULES = Rules(model="a", stages=2, batch=4, samples=4, eval_every=2, eval_batch=1)
START = Head(2, "a")


def head(step, lineage="r"):
    return replace(START, step=step, lineage=lineage, members=[["p"], ["q"]], loss=float(step), norm=0.5)


class Told:
    """A directory that tells of these records, one after another; an error among them is raised once."""

    def __init__(self, first, *records):
        self._first, self._records = first, list(records)

    async def read(self, prefix=""):
        return View(1, {HEAD: Entry(self._first.pack(), 1)})

    async def watch(self, prefix, after):
        for place, record in enumerate(self._records, start=2):
            if isinstance(record, Exception):
                self._records[place - 2] = START
                raise record
            if place > after:
                key = EVALUATED if isinstance(record, Evaluated) else HEAD
                value = record if isinstance(record, bytes) else record.pack()
                yield [Change(key, Entry(value, place), place), Change("peers/p", None, place)]
        raise AssertionError("it went on beyond the last step")


class Device:
    busy = 0.0


class Alone:
    rank, world_size = 0, 1


def follow(path, directory, steps, first=0):
    """What it returns, and the rows that it writes."""

    async def told():
        with reporting(True, first=first, steps=steps, tokens=64, metrics=path) as report:
            busy = Busy(Alone(), Device())
            return await Log(
                directory, RULES, OptimizerConfig(1e-2, steps), RealClock(), busy=busy, report=report
            ).follow()

    loss = asyncio.run(told())
    return loss, [json.loads(line) for line in path.read_text().splitlines()]


def test_every_step_is_told_once_with_its_evaluation(tmp_path):
    records = head(1), head(2), Evaluated(2, "r", 0.25), head(3), Evaluated(3, "r", 0.125)
    loss, rows = follow(tmp_path / "rows", Told(START, *records), steps=3)
    assert loss == 0.125
    assert [(row["step"], row["loss"], row.get("eval_loss")) for row in rows] == [
        (0, 1.0, None),
        (1, 2.0, 0.25),
        (2, 3.0, 0.125),
    ]
    assert all(row["tokens"] == 64 and row["idle_fraction"] == 1.0 for row in rows)


def test_an_evaluation_of_what_was_gone_back_from_is_not_told(tmp_path, capsys):
    back = replace(START, step=1, lineage="r")
    records = head(1), head(2), back, Evaluated(2, "lost", 9.0), head(2), Evaluated(2, "r", 0.5)
    loss, rows = follow(tmp_path / "rows", Told(START, *records), steps=2)
    assert (loss, [row["step"] for row in rows]) == (0.5, [0, 1])
    assert "went back to step 1" in capsys.readouterr().out


def test_a_head_that_only_moves_a_peer_is_not_told_as_a_return_to_an_older_step(tmp_path, capsys):
    records = head(1), replace(head(1), moves={"p0": 1}), head(2), Evaluated(2, "r", 0.5)
    _, rows = follow(tmp_path / "rows", Told(START, *records), steps=2)
    assert [row["step"] for row in rows] == [0, 1] and "went back" not in capsys.readouterr().out


def test_a_run_that_is_over_when_it_begins_is_evaluated(tmp_path):
    loss, rows = follow(
        tmp_path / "rows", Told(replace(START, step=4, lineage="r"), Evaluated(4, "r", 0.5)), 4, first=4
    )
    assert (loss, rows) == (0.5, [{"step": 4, "eval_loss": 0.5}])


@pytest.mark.parametrize("trouble", [CutOff("away"), FellBehind("far"), b"nonsense"])
def test_trouble_with_the_directory_costs_no_row(tmp_path, trouble):
    records = head(1), trouble, head(2), Evaluated(2, "r", 0.5)
    _, rows = follow(tmp_path / "rows", Told(START, *records), steps=2)
    assert {row["step"] for row in rows} == {0, 1}
