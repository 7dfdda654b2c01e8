"""Chimera-W: the known order, what holds for every timing, and its bubble where it is known and where it is not."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelined.programs.costs import Costs
from pipelined.programs.instructions import Instruction, Program
from pipelined.programs.pricing.price import price
from pipelined.programs.proof.check import check
from pipelined.programs.recording import record, skeleton
from pipelined.schedules import Shape, Worker, find

chimera_w = find("chimera_w")


def priced(depth, microbatches, costs, pipes=2):
    """The timeline at (F, I, Wg), of a program that has been proved."""
    forward, backward_input, backward_weight = costs
    seconds = Costs(forward, backward_input + backward_weight, backward_input, backward_weight)
    program = record(chimera_w, Shape(depth, microbatches, {"pipes": pipes}), seconds)
    check(program)
    timeline = price(program, seconds)
    assert max(timeline.peak_activations) <= depth
    return timeline


def longer(depth, units, costs, pipes=2):
    """Seconds by which the bubble is longer than (D/2f-1) max(F, I), and as many places as that counts."""
    places = depth // pipes - 1
    makespan = priced(depth, units * depth, costs, pipes).makespan
    return makespan - units * depth * sum(costs) - places * max(costs[:2]), places


def ways(depth):
    return [2 * f for f in range(1, depth // 2 + 1) if depth // 2 % f == 0]


def test_the_order_of_four_by_four():
    order = [" ".join(f"{i.op}{i.microbatch}" for i in worker) for worker in record(chimera_w, Shape(4, 4)).workers]
    assert order == [
        "F0 F1 F2 I2 F3 I3 I0 W2 I1 W3 W0 W1",
        "F0 F2 F1 F3 I2 I0 I3 I1 W2 W0 W3 W1",
        "F2 F0 F3 F1 I0 I2 I1 I3 W0 W2 W1 W3",
        "F2 F3 F0 I0 F1 I1 I2 W0 I3 W1 W2 W3",
    ]


@pytest.mark.parametrize("depth", [4, 8])
def test_the_bubble_is_one_input_half_a_place_where_that_takes_longer_than_a_forward(depth):
    """Where it does not, the table of closed forms says it."""
    for pipes in ways(depth):
        for units in (1, 2):
            assert longer(depth, units, (1, 2, 1), pipes)[0] == 0


@pytest.mark.parametrize("costs", [(10, 11, 9), (20, 23, 17), (10, 12, 8), (6, 5, 4)])
@pytest.mark.parametrize("depth", [4, 8, 12, 16])
def test_costs_like_a_transformer_block_s_take_at_most_a_weight_half_a_place_more(depth, costs):
    for units in (1, 3):
        more, places = longer(depth, units, costs)
        assert 0 <= more <= places * costs[2]


def test_a_block_s_costs_are_an_exception_from_depth_10_up():
    assert [longer(depth, 1, (10, 11, 9)) for depth in (8, 10)] == [(0, 3), (8, 4)]


@pytest.mark.parametrize("costs, longest", [((4, 4, 1), [3, 3, 3]), ((1, 4, 1), [3, 9, 15]), ((4, 1, 1), [4, 10, 16])])
def test_short_weight_halves_leave_gaps_open_and_uneven_costs_do_in_every_unit(costs, longest):
    assert [longer(6, units, costs)[0] for units in (1, 2, 3)] == longest


@pytest.mark.parametrize("depth", [2, 4, 6, 8])
def test_any_number_of_microbatches_stays_below_the_cap_and_as_many_pipes_as_stages_idle_nowhere(depth):
    for microbatches in range(1, 3 * depth + 2):
        priced(depth, microbatches, (2, 3, 1), pipes=ways(depth)[microbatches % len(ways(depth))])
    assert priced(depth, depth, (1, 1, 1), pipes=depth).bubble_ratio == 0


class Mocked(Worker):
    """A worker that has the messages that the test gives it."""

    def __init__(self, index, stage_map, answers):
        super().__init__(index, stage_map)
        self.answers, self.done = answers, []

    async def _execute(self, op, pipe, stage, microbatch):
        self.done.append(Instruction(op, pipe, stage, microbatch))

    def _has_arrived(self, at):
        return self.answers.draw(st.booleans())


def told(shape, answers):
    stage_map, done = chimera_w.stage_map(shape), []
    for index in range(stage_map.workers):
        worker = Mocked(index, stage_map, answers)
        with pytest.raises(StopIteration):
            chimera_w.schedule(worker).send(None)
        done.append(tuple(worker.done))
    return Program(stage_map, tuple(done))


@settings(max_examples=60, deadline=None)
@given(half=st.integers(1, 4), microbatches=st.integers(1, 20), which=st.integers(0, 3), answers=st.data())
def test_whatever_the_timing_order_cap_and_first_in_first_out_hold(half, microbatches, which, answers):
    shape = Shape(2 * half, microbatches, {"pipes": ways(2 * half)[which % len(ways(2 * half))]})
    program = told(shape, answers)
    check(program)
    assert max(price(program, Costs()).peak_activations) <= shape.depth
    split = [[("I" if i.op == "B" else i.op, i.pipe, i.microbatch) for i in w] for w in chimera(shape).workers]
    for worker, order in zip(program.workers, split, strict=True):
        assert [(i.op, i.pipe, i.microbatch) for i in skeleton(worker)] == order
        first_in = [(i.pipe, i.microbatch) for i in worker if i.op == "I"]
        assert first_in == [(i.pipe, i.microbatch) for i in worker if i.op == "W"]


def chimera(shape):
    return record(find("chimera"), shape)


def test_the_program_is_that_of_the_costs_given_whatever_their_unit():
    shape = Shape(8, 16)
    assert record(chimera_w, shape, Costs(0.1, 0.2, 0.1, 0.1)) == record(chimera_w, shape, Costs(7, 14, 7, 7))
    assert record(chimera_w, shape) != record(chimera_w, shape, Costs(10, 20, 11, 9))
