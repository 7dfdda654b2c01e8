"""A pipe without a flush, priced without an event loop: the same seconds as the pricer with one, and lines unalike."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelined.aio.clock import Deadlock
from pipelined.programs.costs import Costs
from pipelined.programs.pricing.price import price_schedule
from pipelined.programs.pricing.steady import steady
from pipelined.ravnest.planning.pipe_pricing import PipeCosts, price_pipe, price_steady_step
from pipelined.schedules import Shape, find
from pipelined.schedules.parts.placements import one_pipe_without_flush

ASYNC = find("async_1f1b")
SECONDS = st.one_of(st.sampled_from([1.0, 2.0, 3.0]), st.floats(0.1, 5.0))
PIPES = st.integers(1, 5).flatmap(
    lambda depth: st.tuples(
        st.lists(st.integers(1, 8), min_size=depth, max_size=depth),
        st.lists(SECONDS, min_size=depth, max_size=depth),
        st.lists(SECONDS, min_size=depth, max_size=depth),
    )
)


@settings(max_examples=50)
@given(PIPES, st.one_of(st.just(0.0), SECONDS), st.integers(1, 6), st.integers(1, 3))
def test_over_lines_alike_it_prices_as_the_pricer_on_the_virtual_clock(pipe, line, microbatches, steps):
    limits, forward, backward = pipe
    costs, alike = Costs(forward, backward, p2p=line), PipeCosts(forward, backward, [line] * (len(limits) - 1))
    shape = Shape(len(limits), microbatches, {"ahead": ",".join(map(str, limits))}, steps)
    stepped = price_pipe(ASYNC, ASYNC.stage_map(shape), alike)
    assert stepped.makespan == pytest.approx(price_schedule(ASYNC, shape, costs).makespan)
    assert price_steady_step(ASYNC, shape, alike) == pytest.approx(steady(ASYNC, shape, costs).step)


def test_each_line_takes_its_own_time():
    """One microbatch passes three stages of 1 and 2 and both lines, there and back."""
    costs = PipeCosts([1.0] * 3, [2.0] * 3, [10.0, 100.0])
    assert price_pipe(ASYNC, ASYNC.stage_map(Shape(3, 1)), costs).makespan == 9 + 2 * 110


def test_a_worker_that_waits_for_what_never_comes_is_a_deadlock():
    class BackwardFirst:
        __name__ = "backward_first"

        @staticmethod
        async def schedule(worker):
            await worker.backward(0)

    stage_map = one_pipe_without_flush("backward_first", Shape(2, 1), ASYNC.stage_map(Shape(2, 1)).updates)
    with pytest.raises(Deadlock, match="worker 0 waits for a message that never comes"):
        price_pipe(BackwardFirst(), stage_map, PipeCosts([1.0] * 2, [1.0] * 2, [0.0]))
