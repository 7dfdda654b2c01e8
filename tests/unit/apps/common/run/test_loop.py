"""The end of a rank's loop, at the last step or on a stop request."""

import asyncio
from dataclasses import dataclass, field

import pytest

from apps.common.run.loop import ReportedLoop
from apps.llama.__main__ import LlamaFlags
from pipelined.process.stop_request import StopRequest
from pipelined.programs.plan import Plan
from pipelined.training.segments.step_report import StepReport


@dataclass
class Said:
    """A report that keeps its last line, and the steps that were evaluated."""

    line: str = ""
    evaluated: list[int] = field(default_factory=list)

    def step(self, result, loss, digest=""):
        """Nothing."""

    def compare_with_plan(self):
        """Nothing."""

    def say(self, line):
        self.line = line


class StoppedAt:
    """A rank to which a stop request comes during a step."""

    def __init__(self, step):
        self._step = step

    async def train(self, steps, stopping, on_step):
        last = min(self._step, steps[-1])
        return StepReport(last, 1.0, 1.0, 0.1, 0.1, 0.0, stop=last == self._step)


@pytest.mark.parametrize(("step", "loss"), [(0, None), (1, 0.5)])
def test_a_stop_request_in_the_last_step_leaves_nothing_to_stop(step, loss):
    said = Said()

    async def evaluate(done):
        said.evaluated.append(done)
        return 0.5

    config = LlamaFlags(steps=2, eval_every=0)
    plan, stop = Plan("gpipe", 1, 1, 1, 1), StopRequest.of_rank()
    loop = ReportedLoop(config, plan, StoppedAt(step), said, stop=stop, evaluate=evaluate)
    assert asyncio.run(loop.run(0)) == loss
    assert (said.evaluated == [2]) == (loss is not None) == ("stopped on request" not in said.line)
