"""A schedule of the user's own: where it is found, and what is said of one that is wrong."""

import os

import pytest

from pipelined.__main__ import main
from pipelined.programs.proof.check import check
from pipelined.programs.recording import record
from pipelined.schedules import ScheduleError, Shape, find

RIGHT = """
from pipelined.schedules.gpipe import stage_map

async def schedule(worker):
    await worker.forward(0)
    await worker.backward(0)
"""
GPIPES = "from pipelined.schedules.gpipe import stage_map\n"


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write a schedule under a name of its own, in a folder on the path; gives the file's path."""
    monkeypatch.syspath_prepend(tmp_path)

    def written(text, name="mine_alone"):
        (tmp_path / f"{name}.py").write_text(text)
        return str(tmp_path / f"{name}.py")

    return written


def test_it_is_found_by_its_path_and_by_its_bare_name(own):
    path = own(RIGHT, "found_by_name")
    for name in (path, "found_by_name"):
        check(record(find(name), Shape(3, 1)))


CLASSES = """
from dataclasses import dataclass
from pipelined.schedules import StageMap
from pipelined.schedules import gpipe

@dataclass(frozen=True)
class OwnStageMap(StageMap):
    pass

def stage_map(shape):
    return OwnStageMap(**vars(gpipe.stage_map(shape)))

async def schedule(worker):
    assert isinstance(worker.stage_map, OwnStageMap)
    await gpipe.schedule(worker)
"""


def test_a_file_s_classes_are_the_same_however_often_it_is_named(own):
    path = own(CLASSES)
    stage_map = find(path).stage_map(Shape(2, 2))
    assert isinstance(stage_map, find(path).source.OwnStageMap)
    check(record(find(path), Shape(2, 2)))


def test_a_file_that_was_changed_is_read_again(own):
    path = own("def stage_map(shape)\n")
    with pytest.raises(ScheduleError, match="SyntaxError"):
        find(path)
    own(RIGHT)
    os.utime(path, (1, 1))
    check(record(find(path), Shape(3, 1)))


def test_a_bare_name_never_hides_a_schedule_of_the_project(own):
    own("raise SystemExit", "gpipe")
    check(record(find("gpipe"), Shape(2, 2)))


@pytest.mark.parametrize("name", ["json", "__main__", "no such name", "-", "", ".", "..own", ".:Own", ":Own"])
def test_a_name_that_is_no_schedule_is_refused(name):
    with pytest.raises(ScheduleError, match=r"json does not define a schedule|unknown schedule"):
        find(name)


TUPLE = """
from pipelined.schedules import StageMap
def stage_map(shape): return StageMap(1, 1, {(0, 0): (0,)}, ((0,),))
def schedule(w): ...
"""
WRONG = {
    "syntax": ("def stage_map(shape)\n", r"importing .* raised SyntaxError: expected ':' \(mine_alone.py, line 1\); "),
    "leaves": ("raise SystemExit(0)\n", r"SystemExit: 0, at mine_alone.py, line 1 \(raise .*; correct it"),
    "no stage_map": (
        "async def schedule(worker): ...\n",
        r"does not define a schedule \(it lacks stage_map\); let it define",
    ),
    "stage map fails": (
        "def stage_map(shape): return 1 // 0\ndef schedule(w): ...\n",
        r"the stage map of .* raised ZeroDivisionError: .*line 1 \(def stage_map",
    ),
    "no answer": (
        "def stage_map(shape): ...\ndef schedule(w): ...\n",
        r"must be a StageMap \(got: NoneType None\); return one",
    ),
    "another depth": (
        TUPLE.replace("(1, 1, {(0, 0): (0,)}", "(9, 1, {(0, 0): 0}"),
        r"is of another shape \(depth: 9, requested: \d; microbatches: 1, requested: \d\); make it from shape.depth",
    ),
    "a word for workers": (
        TUPLE.replace("(1, 1, {(0, 0): (0,)}", "(1, 'a', {(0, 0): 0}"),
        r"has 'a' workers; give their number",
    ),
    "a place without a pipe": (
        TUPLE.replace("{(0, 0): (0,)}", "{0: 0}"),
        r"has the key 0 instead of \(pipe, stage\); give \{\(pipe, stage\): worker\}",
    ),
    "a list for the placement": (
        TUPLE.replace("{(0, 0): (0,)}", "[0]"),
        r"has the placement \[0\]; give \{\(pipe, stage\): worker\}",
    ),
    "a number for a pipe's microbatches": (
        TUPLE.replace("(0,)}, ((0,),)", "0}, (0,), updates=Updates(every=1)").replace(
            "StageMap\n", "StageMap, Updates\n"
        ),
        r"has the microbatches \(0,\); give one tuple of numbers for each pipe",
    ),
    "an update of no microbatch": (
        TUPLE.replace("((0,),)", "((0,),), updates=Updates(every=0)").replace("StageMap\n", "StageMap, Updates\n"),
        r"at least one microbatch \(every: 0\); give a whole number from 1 up",
    ),
    "a tuple of workers": (TUPLE, r"places stage 0 of pipe 0 on \(0,\); give the number of one worker"),
    "no coroutine": (
        GPIPES + "def schedule(w): ...\n",
        r"worker 0 must be a coroutine \(got: NoneType None\); write async def",
    ),
    "no such verb": (
        GPIPES + "async def schedule(w):\n    await w.foward(0)\n",
        r"alone.py, line 3 .*; did you mean forward\? correct it",
    ),
    "no such pipe": (GPIPES + "async def schedule(w):\n    await w.forward(7)\n", "worker 0 holds no stage of pipe 7"),
    "endless": (GPIPES + "async def schedule(w):\n    while 1: await w.forward(0, 0, 0)\n", "worker 0 does not stop"),
    "one too many": (GPIPES + "async def schedule(w):\n    while 1: await w.forward(0)\n", "asks for one F more"),
    "waits": (GPIPES + "import asyncio\nasync def schedule(w): await asyncio.sleep(1)\n", "no running event loop"),
    "forgets": (GPIPES + "async def schedule(w): await w.forward(0)\n", r"worker 0 lacks 0B0p0[^^]*\^ missing: 0B0p0"),
    "backwards": (
        GPIPES + "async def schedule(w):\n    await w.backward(0)\n    await w.forward(0)\n",
        r"the order deadlocks \(workers in the cycle: \[0\]\)[^^]*\^ waits for 0F0p0",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_an_invalid_schedule_is_one_message_and_exit_code_2(own, capsys, fault):
    text, message = WRONG[fault]
    path = own(text)
    with pytest.raises(ScheduleError, match=message):
        check(record(find(path), Shape(2, 1)))
    assert main(["schedule", path, "--depth", "2", "--microbatches", "1"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("python -m pipelined schedule: error: ")
