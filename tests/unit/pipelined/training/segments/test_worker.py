"""The worker that trains takes the time the price says, passes gradients on at once, and reports what has ended."""

import asyncio
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch

from benchmarks.harness.timed_executor import TimedExecutor
from pipelined.actors.actor import Actor
from pipelined.actors.device.executor import TorchExecutor
from pipelined.aio.clock import RealClock, VirtualClock, run_virtual
from pipelined.errors import UsageError
from pipelined.programs.addresses import Gradient
from pipelined.programs.costs import Costs
from pipelined.programs.instructions import Instruction
from pipelined.programs.plan import Plan
from pipelined.programs.pricing.price import price
from pipelined.programs.recording import record
from pipelined.schedules import find
from pipelined.traces.tracer import NullTracer, Tracer
from pipelined.training.exchange.parcels import Parcel
from pipelined.training.job.rank_context import RankContext
from pipelined.training.segments.computation import StageFailed
from pipelined.training.segments.instruction_queue import MAX_WITH_MESSAGE, MAX_WITHOUT
from pipelined.training.segments.replay import follow_order
from pipelined.training.segments.worker import TrainWorker
from transports import Nursery
from transports.local import world

COSTS = Costs(forward=3.0, backward=7.0, backward_input=4.0, backward_weight=2.0)
SECONDS = {name: getattr(COSTS, name) for name in ("forward", "backward", "backward_input", "backward_weight")}
SPLIT = ("zb_h1", "zb_v", "dualpipe", "dualpipe_v", "chimera_w")
PLANS = [Plan(name, depth, 1, 1, n) for name in ("chimera", *SPLIT) for depth, n in ((4, 4), (4, 9), (8, 3))]


class Hollow:
    """A stage that computes nothing, and may fail at an instruction."""

    def __init__(self, index, depth, fails=None):
        self.last, self.index, self.fails = index == depth - 1, index, fails

    def forward(self, which, x, random, targets=None):
        if (self.index, *which, "F") == self.fails:
            raise FloatingPointError("too large")
        return Parcel((0.0 if self.last else np.zeros(1),))

    def backward(self, which, gradient, scale, random, targets=None):
        return Parcel((np.zeros(1),))

    backward_input = backward

    def backward_weight(self, which):
        if (self.index, *which) == self.fails:
            raise FloatingPointError("too large")


class NoFeed:
    def inputs(self, step, microbatch):
        return microbatch

    targets = inputs


class NoSums:
    """Notes what has ended when."""

    def __init__(self, clock):
        self.clock, self.done = clock, {}

    def record_end(self, instruction):
        self.done[instruction] = self.clock.now()


def walk(plan, by="order", fails=None, late=0.0, half=None, queued=True, in_order=False):
    """Run one step on the virtual clock over real messages: the end, each rank's spans, when its instructions ended.

    Args:
        by: "order", that of the priced program, or "schedule", the coroutine with its own answers.
        late: seconds that a forward takes longer on rank 1.
        half: what the last weight half of the step before took, if there was one.
        queued: let the schedule go on while instructions are computed.
        in_order: run weight halves in one order, whatever arrives when.
    """
    program = record(find(plan.schedule), plan.shape, COSTS)

    async def rank(transport):
        clock, tracer = VirtualClock(), Tracer(VirtualClock().now)
        stages = {stage: Hollow(stage, plan.depth, fails) for stage in plan.stages_of(transport.rank)}
        instructions = program.workers[transport.rank]
        async with Actor(transport) as actor:
            device = TimedExecutor({**SECONDS, "forward": COSTS.forward + late * (actor.rank == 1)}, clock)
            device.took.update({} if half is None else {"backward_weight": half})
            context = RankContext(actor, plan, stages, device, NoFeed(), tracer, seed=0, follows_proved_order=in_order)
            async with Nursery() as queue:
                parent = queue if queued else None
                worker = TrainWorker(context, 0, sums := NoSums(clock), instructions, instructions=parent)
                await (follow_order(worker, instructions) if by == "order" else find(plan.schedule).schedule(worker))
        return clock.now(), tracer.events(), sums.done

    async def everyone():
        async with asyncio.TaskGroup() as ranks:
            tasks = [ranks.create_task(rank(transport)) for transport in world(plan.world_size)]
        return [task.result() for task in tasks]

    return run_virtual(everyone())


def ends(events, name):
    """When each instruction of a kind ended, by (stage, microbatch)."""
    kind = [known[1] for known in events.kinds].index(name)
    rows = zip(events.kind, events.times, events.coordinates, strict=True)
    return {(int(place[1]), int(place[2])): float(times[1]) for k, times, place in rows if k == kind}


@pytest.mark.parametrize("queued", [True, False], ids=["queued", "one by one"])
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.schedule}-D{plan.depth}-N{plan.microbatches}")
def test_a_step_takes_what_its_program_is_priced_at(plan, queued):
    program = record(find(plan.schedule), plan.shape, COSTS)
    assert max(end for end, _, _ in walk(plan, queued=queued)) == price(program, COSTS).makespan


@pytest.mark.parametrize("name", SPLIT)
def test_sums_learn_of_each_weight_half_at_its_end(name):
    for _, events, done in walk(Plan(name, 4, 1, 1, 5)):
        halves = {(i.stage, i.microbatch): end for i, end in done.items() if i.op == "W"}
        assert halves == ends(events, "backward_weight")


def test_an_end_is_awaited_that_another_rank_or_a_sum_waits_for(monkeypatch):
    """Of two stages: forwards of the first, backwards of the second, and the last gradient of the first."""
    run, found = TimedExecutor.run, {"forward": Counter(), "backward": Counter()}

    async def noted(self, op, work, report_at_once=True):
        found[op][report_at_once] += 1
        return await run(self, op, work, report_at_once)

    monkeypatch.setattr(TimedExecutor, "run", noted)
    walk(Plan("gpipe", 2, 1, 1, 3))
    assert found == {"forward": {True: 3, False: 3}, "backward": {True: 4, False: 2}}


@pytest.mark.parametrize("in_order", [False, True])
def test_late_messages_move_weight_halves_unless_their_order_is_fixed(in_order):
    plan = Plan("chimera_w", 4, 1, 1, 8)
    early, late = (walk(plan, "schedule", late=late, in_order=in_order) for late in (0.0, 20.0))
    assert ([list(done) for *_, done in early] == [list(done) for *_, done in late]) is in_order


def test_a_schedule_s_own_sum_is_passed_on_and_takes_no_time(tmp_path):
    (tmp_path / "mine.csv").write_text("0F0,0B0,0REDUCE_GRAD\n1F0,1B0,1REDUCE_GRAD\n")
    for _, _, done in walk(Plan(str(tmp_path / "mine.csv"), 2, 1, 1, 1), by="schedule"):
        ((stage, summed),) = [(i.stage, at) for i, at in done.items() if not i.computes]
        assert summed == done[Instruction("B", 0, stage, 0)]


def test_the_gradient_goes_on_before_the_weight_half():
    (_, sender, _), (_, receiver, _) = walk(Plan("zb_h1", 2, 1, 1, 1))[::-1]
    assert ends(receiver, Gradient(0, 0, 0, 0).key[0])[0, 0] == ends(sender, "backward_input")[1, 0]
    assert ends(sender, "backward_weight")[1, 0] > ends(receiver, "gradient")[0, 0]


@pytest.mark.parametrize("microbatches", [1, 4, 9])
@pytest.mark.parametrize("queued", [True, False], ids=["queued", "one by one"])
def test_a_dynamic_schedule_runs_weight_halves_while_messages_are_awaited(microbatches, queued):
    """By its own answers no worker idles while it has a weight half to do."""
    plan = Plan("chimera_w", 4, 1, 1, microbatches)
    for _, events, _ in walk(plan, by="schedule", queued=queued):
        inputs, weights = ends(events, "backward_input"), ends(events, "backward_weight")
        compute = sorted(
            (start, end)
            for k, (start, end) in zip(events.kind, events.times.tolist(), strict=True)
            if events.kinds[k][0] in ("forward", "backward")
        )
        for (_, before), (after, _) in pairwise(compute):
            pending = [at for at in inputs if inputs[at] <= before and weights[at] > before]
            assert after == before or not pending


@pytest.mark.parametrize("half, kept", [(None, False), (4.0, True), (0.4, False)])
def test_a_message_that_is_due_is_waited_for_a_share_of_a_weight_half(half, kept):
    """Rank 1 is late by 0.2 seconds a forward; weight halves run at the same places as without a late rank."""
    plan = Plan("chimera_w", 4, 1, 1, 4)
    proved, taken = (
        [[at for at, _ in sorted(_computed(events).items(), key=lambda one: one[1])] for _, events, _ in ranks]
        for ranks in (walk(plan), walk(plan, by="schedule", late=0.2, half=half))
    )
    assert (taken == proved) is kept


def _computed(events):
    """When each forward, backward or half of one ended."""
    names = ("forward", "backward_input", "backward_weight")
    return {(name, *at): end for name in names for at, end in ends(events, name).items()}


def test_a_failing_weight_half_is_blamed_on_its_place():
    with pytest.raises(ExceptionGroup) as caught:
        walk(Plan("zb_h1", 2, 1, 1, 2), fails=(1, 0, 1))
    where = r"rank 1, step 0: backward_weight of microbatch 1 through stage 1 \(pipe 0\) failed: .*too large"
    assert caught.group_contains(StageFailed, match=where)


def test_a_queued_forward_that_fails_ends_the_wait_for_a_message():
    """The schedule has gone on to wait for a gradient that never comes: the rank would wait for ever."""
    with pytest.raises(ExceptionGroup) as caught:
        walk(Plan("one_f_one_b", 2, 1, 1, 1), fails=(0, 0, 0, "F"))
    where = r"rank 0, step 0: forward of microbatch 0 through stage 0 \(pipe 0\) failed: .*too large"
    assert caught.group_contains(StageFailed, match=where)


def test_a_result_after_a_failed_instruction_is_not_taken_for_that_of_the_failed_one():
    """It was: the loss of the next microbatch was sent as a gradient, and this error hid why the first one failed."""
    plan = Plan("gpipe", 1, 1, 1, 2)

    class FirstFails(Hollow):
        def forward(self, which, x, random, targets=None):
            if which[1] == 0:
                raise FloatingPointError("too large")
            return Parcel((float(which[1]),))

    async def main():
        executor = TorchExecutor("cpu", RealClock())
        try:
            (transport,) = world(1)
            async with Actor(transport) as actor:
                context = RankContext(actor, plan, {0: FirstFails(0, 1)}, executor, NoFeed(), NullTracer(), seed=0)
                with pytest.raises(StageFailed, match="forward of microbatch 0"):
                    async with Nursery() as queue:
                        worker = TrainWorker(context, 0, instructions=queue)
                        for _ in range(plan.microbatches):
                            await worker.forward(0)
                        while len(executor._thread._ended) < plan.microbatches:
                            pass  # both ends are reported to the loop together
                assert worker.losses == {1: 1.0}
        finally:
            executor.close()

    asyncio.run(main())


def test_where_memory_runs_out_the_stage_and_microbatch_are_told_with_the_remedy(monkeypatch):
    monkeypatch.setattr(Hollow, "forward", lambda self, *args: torch.empty(1 << 50))
    with pytest.raises(ExceptionGroup) as caught:
        walk(Plan("one_f_one_b", 1, 1, 1, 1))
    told = r"forward of microbatch 0 through stage 0 \(pipe 0\) failed: .*can't allocate memory.*; recompute, make"
    assert caught.group_contains(UsageError, match=told)


@pytest.mark.parametrize("queued", [True, False])
def test_a_result_that_cannot_be_taken_names_its_microbatch(queued, monkeypatch):
    monkeypatch.setattr(Hollow, "forward", lambda self, *args: Parcel((np.zeros(2),)))
    with pytest.raises(ExceptionGroup) as caught:
        walk(Plan("one_f_one_b", 1, 1, 1, 1), queued=queued)
    where = r"rank 0, step 0: forward of microbatch 0 through stage 0 \(pipe 0\) failed: TypeError"
    assert caught.group_contains(StageFailed, match=where)


def test_a_backward_has_the_scale_of_its_step_over_the_microbatches_of_an_update():
    scales = []

    class Watched(Hollow):
        def backward(self, which, gradient, scale, random, targets=None):
            scales.append(scale)

    async def main():
        (transport,) = world(1)
        async with Actor(transport) as actor:
            device, tracer = TimedExecutor(SECONDS, VirtualClock()), NullTracer()
            context = RankContext(actor, Plan("gpipe", 1, 1, 1, 4), {0: Watched(0, 1)}, device, NoFeed(), tracer, 0)
            for step, more in enumerate([{}, {"loss_scale": 8.0}]):
                worker = TrainWorker(context, step, **more)
                await worker.forward(0)
                await worker.backward(0)

    run_virtual(main())
    assert scales == [1 / 4, 8 / 4]


@pytest.mark.parametrize(
    ("depth", "rank", "ahead"), [(2, 1, MAX_WITH_MESSAGE), (2, 0, MAX_WITHOUT), (1, 0, MAX_WITHOUT)]
)
def test_a_schedule_is_two_instructions_with_messages_ahead_of_the_device_or_many_without(depth, rank, ahead):
    """More messages would be taken, and held, long before their instruction; others hold nothing until they begin."""
    plan, queued, found = Plan("gpipe", depth, 1, 1, 2 * MAX_WITHOUT), [0] * depth, [[] for _ in range(depth)]

    class Watched(Hollow):
        def forward(self, which, x, random, targets=None):
            found[self.index].append(queued[self.index] - which[1] - 1)
            return super().forward(which, x, random, targets)

    async def forwards(transport):
        clock, mine = VirtualClock(), transport.rank
        async with Actor(transport) as actor, Nursery() as queue:
            device = TimedExecutor({"forward": 1.0 + mine}, clock)  # messages are here before the device is free
            context = RankContext(
                actor, plan, {mine: Watched(mine, depth)}, device, NoFeed(), Tracer(clock.now), seed=0
            )
            worker = TrainWorker(context, 0, instructions=queue)
            for _ in range(plan.microbatches):
                await worker.forward(0)
                queued[mine] += 1

    async def everyone():
        async with asyncio.TaskGroup() as ranks:
            for transport in world(depth):
                ranks.create_task(forwards(transport))

    run_virtual(everyone())
    assert max(found[rank]) == ahead


def test_weight_halves_do_not_run_far_ahead_of_the_device():
    """A schedule that asks before each whether a message has arrived would begin all of them instead of its forward."""
    plan, queued, found = Plan("zb_h1", 1, 1, 1, 12), [], []

    class Watched(Hollow):
        def backward_weight(self, which):
            found.append(len(queued) - which[1] - 1)

    async def main():
        clock = VirtualClock()
        (transport,) = world(1)
        async with Actor(transport) as actor, Nursery() as queue:
            device = TimedExecutor(SECONDS, clock)
            context = RankContext(actor, plan, {0: Watched(0, 1)}, device, NoFeed(), Tracer(clock.now), seed=0)
            worker = TrainWorker(context, 0, instructions=queue)
            for _ in range(plan.microbatches):
                await worker.backward_weight(0)
                queued.append(worker)

    run_virtual(main())
    assert max(found) == MAX_WITH_MESSAGE
