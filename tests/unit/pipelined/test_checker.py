"""The checker, against programs that are really executed with held sends under random timing."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipelined.checker import check, check_layout
from pipelined.clock import Deadlock, VirtualClock, run_virtual
from pipelined.program import Instruction, Program
from pipelined.recorder import record
from pipelined.schedules import Layout, ScheduleError, Shape, find, known

CHIMERA = record(find("chimera"), Shape(4, 4))
GPIPE = record(find("gpipe"), Shape(2, 2))


class WentWrong(Exception):
    """The execution did something that cannot be done, or left something undone."""


class Execution:
    """A program executed on mailboxes that hold every message until it is asked for.

    Args:
        durations: drawn from for each instruction.
        blocking: a sender waits until its message is taken.
    """

    def __init__(self, program, durations, blocking=False):
        self.program, self.layout, self.durations, self.blocking = program, program.layout, durations, blocking
        self.mail, self.taken = {}, Counter()
        self.stash, self.pending, self.summed = set(), set(), Counter()

    def run(self):
        """Raises WentWrong or Deadlock unless every stage sums the gradient of each of its microbatches once."""
        run_virtual(self.everyone())
        layout = self.layout
        everything = {(p, s, m) for p, s in layout.placement for m in layout.microbatches[p]}
        if self.summed != Counter(everything) or self.stash or self.pending or any(self.mail.values()):
            raise WentWrong("something was left over or left out")

    async def everyone(self):
        await asyncio.gather(*(self.walk(w, i) for w, i in enumerate(self.program.workers)))

    async def walk(self, worker, instructions):
        for i in instructions:
            await VirtualClock().sleep(self.durations())
            if (i.pipe, i.stage) not in self.layout.held_by(worker):
                raise WentWrong("no such stage here")
            if i.microbatch not in self.layout.microbatches[i.pipe]:
                raise WentWrong("no such microbatch in this pipe")
            await getattr(self, f"do_{i.op}")((i.pipe, i.stage, i.microbatch))

    async def do_F(self, place):
        pipe, stage, microbatch = place
        if stage > 0:
            await self.receive("activation", place)
        self.keep(self.stash, place)
        if stage < self.layout.depth - 1:
            await self.send("activation", (pipe, stage + 1, microbatch))

    async def do_B(self, place):
        await self.do_I(place)
        await self.do_W(place)

    async def do_I(self, place):
        pipe, stage, microbatch = place
        if stage < self.layout.depth - 1:
            await self.receive("gradient", place)
        self.use(self.stash, place)
        self.keep(self.pending, place)
        if stage > 0:
            await self.send("gradient", (pipe, stage - 1, microbatch))

    async def do_W(self, place):
        self.use(self.pending, place)
        self.summed[place] += 1

    async def send(self, kind, place):
        box = self.box(kind, place)
        box.put_nowait(None)
        if self.blocking:
            await box.join()

    async def receive(self, kind, place):
        box = self.box(kind, place)
        await box.get()
        box.task_done()

    def box(self, kind, place):
        return self.mail.setdefault((kind, place), Mailbox())

    def keep(self, where, place):
        if place in where:
            raise WentWrong("done twice")
        where.add(place)

    def use(self, where, place):
        if place not in where:
            raise WentWrong("not there yet")
        where.remove(place)


class Mailbox(asyncio.Queue):
    def __bool__(self):
        return not self.empty()


def executes(program, durations=lambda: 1.0):
    try:
        Execution(program, durations).run()
    except (WentWrong, Deadlock):
        return False
    return True


def proved(program):
    try:
        check(program)
    except ScheduleError:
        return False
    return True


@st.composite
def programs(draw):
    """A program of any schedule, of a shape that it takes."""
    name = draw(st.sampled_from(known()))
    shape = Shape(draw(st.integers(1, 6)), draw(st.integers(1, 6)), chunks=draw(st.integers(1, 2)))
    try:
        return record(find(name), shape)
    except ScheduleError:
        return record(find(name), Shape(4, 4))


@st.composite
def mutated(draw):
    program = draw(programs())
    for _ in range(draw(st.integers(1, 2))):
        program = draw(st.sampled_from([drop, swap, duplicate, retarget, split]))(draw, program)
    return program


def position_in(draw, program):
    worker = draw(st.sampled_from([w for w, mine in enumerate(program.workers) if mine] or [0]))
    assume(program.workers[worker])
    return worker, draw(st.integers(0, len(program.workers[worker]) - 1)), list(program.workers[worker])


def with_worker(program, worker, instructions):
    workers = list(program.workers)
    workers[worker] = tuple(instructions)
    return replace(program, workers=tuple(workers))


def drop(draw, program):
    worker, position, mine = position_in(draw, program)
    del mine[position]
    return with_worker(program, worker, mine)


def swap(draw, program):
    worker, position, mine = position_in(draw, program)
    other = draw(st.integers(0, len(mine) - 1))
    mine[position], mine[other] = mine[other], mine[position]
    return with_worker(program, worker, mine)


def duplicate(draw, program):
    worker, position, mine = position_in(draw, program)
    mine.insert(draw(st.integers(0, len(mine))), mine[position])
    return with_worker(program, worker, mine)


def retarget(draw, program):
    worker, position, mine = position_in(draw, program)
    changes = {
        "op": st.sampled_from("FBIW"),
        "pipe": st.integers(0, program.layout.pipes),
        "stage": st.integers(0, program.layout.depth),
        "microbatch": st.integers(0, 6),
    }
    field = draw(st.sampled_from(sorted(changes)))
    mine[position] = replace(mine[position], **{field: draw(changes[field])})
    return with_worker(program, worker, mine)


def split(draw, program):
    """Make halves of one backward, the weight half anywhere."""
    worker, position, mine = position_in(draw, program)
    assume(mine[position].op == "B")
    whole = mine[position]
    mine[position] = replace(whole, op="I")
    mine.insert(draw(st.integers(0, len(mine))), replace(whole, op="W"))
    return with_worker(program, worker, mine)


@given(programs(), st.randoms(use_true_random=False))
def test_what_is_proved_executes_under_any_timing(program, random):
    check(program)
    assert executes(program, random.random)


@settings(max_examples=400)
@given(mutated(), st.randoms(use_true_random=False))
def test_the_proof_agrees_with_the_execution_of_damaged_programs(program, random):
    assert proved(program) == executes(program, random.random)


@pytest.mark.parametrize("name, completes", [("gpipe", True), ("one_f_one_b", False), ("chimera", False)])
def test_with_blocking_sends_only_gpipe_would_complete(name, completes):
    execution = Execution(record(find(name), Shape(4, 4)), lambda: 1.0, blocking=True)
    if completes:
        execution.run()
    else:
        with pytest.raises(Deadlock):
            execution.run()


def refusal(program):
    with pytest.raises(ScheduleError) as caught:
        check(program)
    return str(caught.value)


def test_a_missing_instruction_is_named_and_pointed_at():
    assert refusal(with_worker(GPIPE, 1, GPIPE.workers[1][:-1])) == (
        "worker 1 lacks 1B1p0 (backward of stage 1, microbatch 1); each needs one F and one B, or F, I and W\n"
        "worker 1 | 1F0p0 1F1p0 1B0p0\n"
        "                             ^ missing: 1B1p0"
    )


def test_a_repeated_instruction_is_pointed_at_where_it_is_once_too_often():
    message = refusal(with_worker(GPIPE, 1, [*GPIPE.workers[1], Instruction("F", 0, 1, 0)]))
    assert "worker 1 has 2 times, not 1, 1F0p0" in message
    assert message.endswith("                                   ^ once too often: 1F0p0")


def test_a_deadlock_shows_the_cycle():
    backward_first = [*GPIPE.workers[0][2:], *GPIPE.workers[0][:2]]
    message = refusal(with_worker(GPIPE, 0, backward_first))
    assert message == (
        "the order deadlocks (workers in the cycle: [0]); move one of these\n"
        "worker 0 | 0B0p0 0B1p0 0F0p0 0F1p0\n"
        "           ^ waits for 0F0p0, instruction 2 of worker 0"
    )


def test_a_deadlock_over_two_workers_shows_both():
    mine = list(CHIMERA.workers[0])
    mine[2], mine[7] = mine[7], mine[2]
    message = refusal(with_worker(CHIMERA, 0, mine))
    assert message == (
        "the order deadlocks (workers in the cycle: [0, 1]); move one of these\n"
        "worker 0 | 0F0p0 0F1p0 0B1p0 3B2p1 3F3p1 3B3p1 0B0p0 3F2p1\n"
        "                       ^ waits for 1B1p0, instruction 7 of worker 1\n"
        "worker 1 | 1F0p0 2F2p1 1F1p0 2F3p1 2B2p1 1B0p0 2B3p1 1B1p0\n"
        "                                   ^ waits for 3B2p1, instruction 3 of worker 0"
    )


@pytest.mark.parametrize(
    "instruction, problem",
    [
        (Instruction("X", 0, 0, 0), "unknown op 'X'; known: F, B, I, W"),
        (Instruction("F", 5, 0, 0), "no such stage (pipes: 1, depth: 2)"),
        (Instruction("F", 0, 1, 0), "not held here; stage 1 of pipe 0 is on worker 1"),
        (Instruction("F", 0, 0, 9), "not a microbatch of pipe 0; its own are [0, 1]"),
    ],
)
def test_an_instruction_in_the_wrong_place_is_refused_with_the_reason(instruction, problem):
    message = refusal(with_worker(GPIPE, 0, [instruction, *GPIPE.workers[0]]))
    assert problem in message and message.splitlines()[-1].startswith("           ^ ")


@pytest.mark.parametrize(
    "layout, fact",
    [
        (Layout(2, 2, {(0, 0): (0,)}, ((0,),)), "places 1 .* pairs of 2 .*pipe 0, stage 1"),
        (Layout(1, 1, {(0, 0): (3,)}, ((0,),)), r"on workers \[3\] \(workers: 1\)"),
        (Layout(1, 2, {(0, 0): (0, 1)}, ((0,),)), r"on workers \[0, 1\]"),
        (Layout(1, 1, {(0, 0): (0,)}, ((0, 0),)), "microbatch 0 is in 2 places"),
        (Layout(1, 1, {(0, 0): (0,)}, ((0, 2),)), "microbatch 1 is in 0 places"),
    ],
)
def test_a_layout_that_does_not_add_up_is_refused(layout, fact):
    with pytest.raises(ScheduleError, match=fact):
        check_layout(layout)


def test_an_empty_program_lacks_everything():
    assert "lacks 0F0p0" in refusal(Program(GPIPE.layout, ((), ())))
