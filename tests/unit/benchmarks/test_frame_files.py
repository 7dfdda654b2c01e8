"""What `benchmarks.frame_files` notes while it watches: the project's files, and what goes on as well as starts."""

import asyncio

import numpy as np
import pytest

from benchmarks import frame_files
from benchmarks.frame_files import STAND_INS, Watch, files_of_a_step, files_of_frames, frame, together
from tests.launching import ROOT
from transports.local import world

CODE = """
def called(): return sum([1])
def never(): pass
async def waits(gate):
    await gate.wait()
    called()
"""


def module(root, path):
    """The functions of a file that pretends to lie there."""
    space = {}
    exec(compile(CODE, f"{root}/{path}", "exec"), space)
    return space


def test_files_of_the_packages_are_noted_with_what_ran(tmp_path):
    watch = Watch(tmp_path)
    ours, tests, foreign = (module(tmp_path, path) for path in ("pipelined/a.py", "tests/b.py", "elsewhere.py"))
    ours["never"]()
    with watch.on():
        for space in (ours, tests, foreign):
            space["called"]()
    ours["never"]()
    assert watch.to_dict() == {"pipelined/a.py": ["called"]}


async def test_a_coroutine_that_goes_on_is_noted(tmp_path):
    watch, ours = Watch(tmp_path), module(tmp_path, "transports/a.py")

    gate = asyncio.Event()
    waiting = asyncio.create_task(ours["waits"](gate))
    await asyncio.sleep(0)
    with watch.on():
        gate.set()
        await waiting
    assert watch.to_dict() == {"transports/a.py": ["called", "waits"]}


async def test_a_frame_between_two_ranks_runs_through_files_of_the_tree(monkeypatch):
    monkeypatch.setattr(frame_files, "WATCHED", 1)

    ends = await asyncio.gather(*(files_of_frames(rank, (8, 1 << 16)) for rank in world(2)))
    found = together(ends[0])
    assert found and all((ROOT / path).is_file() for path in found)
    assert not [path for path in found if not path.startswith("transports/")]


async def test_a_third_rank_takes_no_part():
    """Only the sender's rank and the receiver's take part; a third sends and notes nothing."""

    watch, ranks = Watch(), world(3)
    await frame(ranks[2], watch, ("x",), np.zeros(1, np.uint8))
    assert watch.to_dict() == {}


@pytest.mark.parametrize("path", STAND_INS)
def test_what_is_left_out_of_a_step_still_lies_there(path):
    assert (ROOT / path).exists()


def test_a_quiet_step_of_a_swarm_runs_through_few_files():
    """A change of a step begins with reading these files.

    Three of them are parts of two larger ones: the directory's leases and its latest changes, which its state machine
    had inside, and the resolving of a future, which lay with the nursery.
    """
    assert len(files_of_a_step()) <= 61
