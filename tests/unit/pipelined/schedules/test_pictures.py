"""The pictures in the docstrings of schedules: each is the grid that the program itself draws."""

import pytest

from pipelined.programs.costs import Costs
from pipelined.programs.pricing.price import price
from pipelined.programs.recording import record
from pipelined.programs.text_drawing import timeline_grid
from pipelined.schedules import Shape, chimera, find, schedule_names

PICTURES = {
    "async_1f1b": Shape(3, 3, steps=2),
    "chimera": Shape(4, 4),
    "chimera_w": Shape(4, 4),
    "dualpipe": Shape(4, 8),
    "dualpipe_v": Shape(4, 4),
    "gems": Shape(4, 2),
    "gpipe": Shape(4, 4),
    "interleaved": Shape(4, 4, {"chunks": 2}),
    "one_f_one_b": Shape(4, 4),
    "pipedream": Shape(3, 3, steps=2),
    "pipedream_2bw": Shape(3, 3, steps=2),
    "zb_h1": Shape(4, 4),
    "zb_v": Shape(4, 3),
}
SAME_ORDER = {"async_1f1b": "pipedream", "pipedream": "one_f_one_b", "pipedream_2bw": "pipedream"}


def order(name, *sizes, **more):
    return [[(i.op, i.stage, i.microbatch) for i in row] for row in record(find(name), Shape(*sizes, **more)).workers]


@pytest.mark.parametrize("name", PICTURES)
def test_the_docstring_of_a_schedule_draws_it(name):
    shape, text = PICTURES[name], find(name).__doc__
    drawn = timeline_grid(price(record(find(name), shape), Costs(1, 1 if name == "interleaved" else 2)))
    assert f"D = {shape.depth}, N = {shape.microbatches}" in text
    assert [line.strip() for line in text.splitlines() if line.startswith("  worker ")] == drawn.splitlines()


def test_doubled_forwards_are_drawn_where_they_are_ordered():
    drawn = timeline_grid(price(record(chimera, Shape(4, 8, {"scale": "forward-doubling"})), Costs(1, 2)))
    text = chimera._doubled_order.__doc__
    assert "D = 4, N = 8" in text
    assert [line.strip() for line in text.splitlines() if line.startswith("      worker ")] == drawn.splitlines()


def test_every_schedule_has_a_picture():
    assert schedule_names() == [*PICTURES]


@pytest.mark.parametrize("name, other", SAME_ORDER.items())
@pytest.mark.parametrize("depth, microbatches", [(1, 1), (3, 3), (4, 4), (4, 7)])
def test_a_schedule_has_the_order_of_the_one_that_it_names(name, other, depth, microbatches):
    assert f"{other}.py" in find(name).__doc__
    assert order(name, depth, microbatches) == order(other, depth, microbatches)
