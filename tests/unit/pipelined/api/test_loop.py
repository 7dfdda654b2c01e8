"""The loop of one rank: in which order it prepares, trains, reports and saves, with and without a flush."""

import asyncio
from pathlib import Path

import pytest

from pipelined.api.loop import Loop, LoopEnd, LoopHooks, SavePolicy
from pipelined.programs.plan import Plan
from pipelined.training.segments.step_report import StepReport

FLUSHED, OVERLAPPING = Plan("gpipe", 1, 1, 1, 1), Plan("async_1f1b", 1, 1, 1, 1)
HERE = Path("here")


class Listed(LoopHooks):
    """A rank and a program that list all calls; a stop request comes during a step, if any."""

    def __init__(self, stop=None):
        self.calls, self._stop = [], stop

    async def train(self, steps, stopping, on_step):
        reports = [StepReport(step, 1.0, 1.0, 0.1, 0.1, 0.0, stop=step == self._stop) for step in steps]
        last = next((report for report in reports if report.stop), reports[-1])
        for report in reports[: last.step - steps.start]:
            on_step(report)
        return last

    async def prepare(self, done):
        self.calls.append(f"prepare {done}")

    def step(self, report):
        self.calls.append(f"step {report.step}")

    async def drained(self, report, stopped):
        self.calls.append(f"{'stopped' if stopped else 'drained'} {report.step}")

    async def save(self, directory, done, keep):
        self.calls.append(f"save {done}")
        return directory / str(done)

    async def start_save(self, directory, done, keep):
        self.calls.append(f"begin {done}")


def looped(plan, saves, *, steps=4, stop=None, done=0, drains=()):
    listed = Listed(stop)
    loop = Loop(rank=listed, plan=plan, steps=steps, saves=saves, stopping=lambda: False, drains=drains)
    return asyncio.run(loop.run(done, listed)), listed.calls


@pytest.mark.parametrize(("in_background", "save"), [(False, "save 2"), (True, "begin 2")])
def test_a_step_with_a_flush_is_prepared_trained_reported_and_saved(in_background, save):
    end, calls = looped(FLUSHED, SavePolicy(HERE, 2, in_background, 1))
    assert end == LoopEnd(4, False, HERE / "4")
    first = ["prepare 0", "drained 0", "prepare 1", "drained 1", save]
    assert calls == [*first, "prepare 2", "drained 2", "prepare 3", "drained 3", "save 4"]


def test_without_a_flush_the_pipe_is_drained_where_something_is_due():
    _, calls = looped(OVERLAPPING, SavePolicy(None, 3, False, 1), steps=5, drains=(0, 4))
    assert calls == ["prepare 0", "step 0", "step 1", "drained 2", "prepare 3", "drained 3", "prepare 4", "drained 4"]


@pytest.mark.parametrize(
    ("stop", "last", "end"),
    [(1, "stopped 1", LoopEnd(2, True, HERE / "2")), (3, "drained 3", LoopEnd(4, False, HERE / "4"))],
)
def test_a_stop_request_ends_the_loop_with_a_save_unless_its_step_is_the_last(stop, last, end):
    found, calls = looped(FLUSHED, SavePolicy(HERE, 2, True, 1), stop=stop)
    assert found == end and calls[-2:] == [last, f"save {end.done}"]


def test_where_no_step_is_left_the_state_is_saved_again():
    assert looped(FLUSHED, SavePolicy(HERE, 0, False, 1), done=4) == (LoopEnd(4, False, HERE / "4"), ["save 4"])
