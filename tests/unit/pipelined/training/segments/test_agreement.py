"""The numbers of a step on which all ranks agree: what a rank sends is counted once, in the step that it belongs to."""

import asyncio
from types import SimpleNamespace

import pytest

from collectives import Group
from pipelined.aio.clock import RealClock
from pipelined.programs.updates.step_totals import StepAccount, StepTotals
from pipelined.traces.tracer import NullTracer
from pipelined.training.segments.agreement import StepAgreement
from pipelined.training.segments.loss_scale import LossScale
from pipelined.training.segments.segment import Segment
from transports.local import world

MESSAGES, UPDATE, STATISTICS, BETWEEN = 1000, 100, 10, 7


class Scene(Segment):
    """A segment of some steps; its messages, updates and merged statistics send bytes."""

    def __init__(self, steps):
        self.steps, self.traffic = steps, SimpleNamespace(bytes_sent=0, bytes_to={}, object_bytes_sent=0)
        actor = SimpleNamespace(rank=0, transport=SimpleNamespace(traffic=self.traffic))
        plan = SimpleNamespace(updates_a_step=1)
        executor = SimpleNamespace(busy=0.0, clock=RealClock())
        self.context = SimpleNamespace(actor=actor, executor=executor, plan=plan, tracer=NullTracer())

    async def run(self): ...

    async def admits(self, index):
        return index < self.steps

    async def wait_for_sums(self, index):
        self.traffic.bytes_sent += MESSAGES
        return StepAccount({0: 1.0}, 1.0, {"p": 1.0})

    async def update(self, rate, gradient_scale):
        self.traffic.bytes_sent += UPDATE

    async def merge(self, step):
        self.traffic.bytes_sent += STATISTICS

    def record_agreed(self, index, stop): ...


async def bytes_of(scene, segments):
    """What is reported of each step, where each segment follows other work that sends bytes."""
    settings = SimpleNamespace(clip=0.0, rate=lambda step: 0.1)
    agreement = StepAgreement(
        context=scene.context,
        world=Group(world(1)[0], [0], 0),
        totals=StepTotals(["p"], 1),
        statistics=scene,
        optimizer=None,
        settings=settings,
        loss_scale=LossScale(dynamic=False),
    )
    reported = []
    for _ in range(segments):
        scene.traffic.bytes_sent += BETWEEN
        meter, steps = agreement.new_meter(), range(scene.steps)
        on_step = reported.append
        last = await agreement.complete_steps(scene, steps, meter, stopping=lambda: False, on_step=on_step)
        reported.append(last)
    return [report.nbytes for report in reported]


@pytest.mark.parametrize(("steps", "segments"), [(1, 3), (3, 1), (2, 2)])
def test_what_an_update_sends_is_among_the_bytes_of_the_next_step_once(steps, segments):
    """Inside a segment it counted twice."""
    counted = asyncio.run(bytes_of(Scene(steps), segments))
    assert counted == [MESSAGES] + [MESSAGES + UPDATE + STATISTICS] * (steps * segments - 1)
