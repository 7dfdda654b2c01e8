"""Every closed form of every schedule, exactly, wherever it is said to hold: D = 1 … 32, N = 1 … 4D, all f.

One table says what holds where. A sample of it runs always; with --full every shape of it up to D = 16, and beyond at
most 16 shapes of each D, at ratios of costs that take turns. Costs are whole numbers, so that no sum is rounded.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import cycle, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelined.programs.costs import Costs
from pipelined.programs.pricing.price import price
from pipelined.programs.proof.check import check
from pipelined.programs.recording import record
from pipelined.schedules import Shape, find

DEPTHS = range(1, 33)
EVEN = range(2, 33, 2)
EVERY_SHAPE_TO = 16
"""The greatest depth of which --full takes every shape. All shapes of greater depths took seven times as long."""
SHAPES_BEYOND = 16
"""Shapes that --full takes of a greater depth, evenly spread over N; the first is another one at each depth."""


@dataclass(frozen=True)
class Case:
    """A shape and costs: F, and the halves I and Wg of a backward of B = I + Wg."""

    shape: Shape
    F: int
    I: int  # noqa: E741 (the papers' letter)
    Wg: int

    @property
    def B(self) -> int:
        return self.I + self.Wg

    @property
    def D(self) -> int:
        return self.shape.depth

    @property
    def N(self) -> int:
        return self.shape.microbatches

    @property
    def V(self) -> int:
        return self.shape.knobs["chunks"]

    @property
    def P(self) -> int:
        """Workers, where a worker has several chunks; folded ones have two."""
        return self.D // max(2 if self.V == 1 else 0, self.V)

    @property
    def K(self) -> int:
        return self.N // self.D

    @property
    def f(self) -> int:
        return max(1, self.shape.knobs["pipes"] // 2)

    @property
    def near(self) -> list[int]:
        """h of each worker: how far it is from the nearer end."""
        return [min(worker, self.D - 1 - worker) for worker in range(self.D)]


def at_any(F, I, Wg):  # noqa: E741
    return True


def at_longer_backwards(F, I, Wg):  # noqa: E741
    return I + Wg >= F


def at_double_backwards(F, I, Wg):  # noqa: E741
    return I + Wg >= 2 * F


def at_falling(F, I, Wg):  # noqa: E741
    return Wg <= I <= F


def at_falling_and_longer(F, I, Wg):  # noqa: E741
    return Wg <= I <= F <= I + Wg


def at_units(F, I, Wg):  # noqa: E741
    return F == I == Wg


def at_tiles(F, I, Wg):  # noqa: E741
    return I <= F <= 2 * Wg and F <= I + Wg and (F == I or I <= Wg)


@dataclass(frozen=True)
class Form:
    """What holds for one schedule, or one part of what it takes.

    Args:
        makespan: seconds of a step.
        peaks: live microbatches of each worker, or what they must satisfy.
        weights: stages a worker holds at most.
        costs: where it holds.
        shapes: of a depth: (N, pipes, chunks).
    """

    id: str
    name: str
    makespan: Callable[[Case], float]
    peaks: Callable[[Case, list], bool]
    weights: Callable[[Case], int]
    costs: Callable[[int, int, int], bool]
    shapes: Callable[[int], Iterable[tuple[int, int, int]]]
    depths: range = DEPTHS
    scale: str = "direct"


def exactly(peaks):
    return lambda c, found: found == peaks(c)


def any_number(depth):
    return [(n, 0, 1) for n in range(1, 4 * depth + 1)]


def units_of(*counts):
    return lambda depth: [(k * depth, 0, 1) for k in counts]


def units_of_every_f(depth):
    each_way = [f for f in range(1, depth // 2 + 1) if depth // 2 % f == 0]
    return [(k * depth, 2 * f, 1) for k in (1, 2, 3, 4) for f in each_way]


def rounds_of_chunks(depth):
    shares = [v for v in range(1, depth + 1) if depth % v == 0]
    return [(n, 0, v) for v in shares for n in range(depth // v, 4 * depth + 1, depth // v)]


def gems_makespan(c):
    return c.D * c.F + (c.N - 1) * (c.D * max(c.F, c.B) + min(c.F, c.B)) + c.D * c.B


def chimera_peaks(c, found):
    if c.f == 1:
        return found == [c.D // 2 + 1 + h for h in c.near]
    return (min(found), max(found)) == (c.D - c.D // (2 * c.f) + 1, c.D)


def odd_doubling(c):
    return (c.K - 3) * (c.B - 2 * c.F) + 2 * (c.B - c.F)


def beyond_triple(c):
    """Where forwards are doubled: the seconds by which a backward outlasts three of them."""
    return max(0, c.B - 3 * c.F)


def interleaved_peaks(c):
    """Stage inputs; with one chunk it is 1F1B."""
    v, workers = c.V, c.D // c.V
    turns = 2 if v > 1 else 1
    return [min(c.N * v, (v - 1) * workers + turns * (workers - 1 - w) + 1) for w in range(workers)]


FORMS = [
    Form("gpipe", "gpipe", lambda c: (c.N + c.D - 1) * (c.F + c.B), exactly(lambda c: [c.N] * c.D),
         lambda c: 1, at_any, any_number),
    Form("one_f_one_b", "one_f_one_b", lambda c: (c.N + c.D - 1) * (c.F + c.B),
         exactly(lambda c: [min(c.N, c.D - s) for s in range(c.D)]), lambda c: 1, at_any, any_number),
    Form("gems", "gems", gems_makespan, exactly(lambda c: [1] * c.D), lambda c: min(c.D, 2), at_any, any_number),
    Form("chimera", "chimera",
         lambda c: c.N * (c.F + c.B) + (c.D // 2 // c.f - 1) * (c.F + c.B + (2 * c.K - 1) * (c.B - c.F)),
         chimera_peaks, lambda c: 2 * c.f, at_longer_backwards, units_of_every_f, EVEN),
    Form("chimera-few", "chimera", lambda c: c.D * (c.F + c.B) + 2 * c.B * (-(-c.N // 2) - 1),
         lambda c, found: max(found) <= c.D, lambda c: 2, at_longer_backwards,
         lambda depth: [(n, 0, 1) for n in range(1, depth + 1)], EVEN),
    Form("chimera-doubling", "chimera",
         lambda c: c.N * (c.F + c.B) + (c.D // 2 - 1) * (c.F + c.B + (c.K - 2) * (c.B - 2 * c.F) + beyond_triple(c)),
         exactly(lambda c: [3 * c.D // 2 + 1 + h for h in c.near]), lambda c: 2, at_double_backwards,
         units_of(2, 4), EVEN, "forward-doubling"),
    Form("chimera-odd-doubling", "chimera",
         lambda c: c.N * (c.F + c.B) + (c.D // 2 - 1) * (c.F + c.B + odd_doubling(c) + beyond_triple(c)),
         exactly(lambda c: [3 * c.D // 2 + 1 + h for h in c.near]), lambda c: 2, at_double_backwards,
         units_of(3), EVEN, "forward-doubling"),
    Form("chimera-halving", "chimera",
         lambda c: c.N * (c.F + c.B)
         + (c.D // 2 - 1) * ((c.F + c.B + beyond_triple(c)) / 2 + (c.K - 1) * (c.B - 2 * c.F)),
         exactly(lambda c: [(3 * c.D // 2 + 1 + h) / 2 for h in c.near]), lambda c: 2, at_double_backwards,
         units_of(1, 2, 3, 4), EVEN, "backward-halving"),
    Form("interleaved", "interleaved",
         lambda c: (c.N * c.V + c.D // c.V - 1) * (c.F + c.B), exactly(interleaved_peaks),
         lambda c: c.V, at_any, rounds_of_chunks),
    Form("zb_h1", "zb_h1", lambda c: c.N * (c.F + c.B) + (c.D - 1) * (c.F + c.I - c.Wg),
         exactly(lambda c: [min(c.N, c.D)] * c.D), lambda c: 1, at_falling,
         lambda depth: [(n, 0, 1) for n in range(depth, 4 * depth + 1)]),
    Form("zb_v", "zb_v", lambda c: (6 * c.N + c.P - 1) * c.F, exactly(lambda c: [2 * c.P] * c.P), lambda c: 2,
         at_units, lambda depth: [(n, 0, 1) for n in range(depth - 1, 4 * depth + 1)], EVEN),
    Form("dualpipe", "dualpipe", lambda c: c.N * (c.F + c.B) + (c.D // 2 - 1) * (c.F + c.I - c.Wg),
         exactly(lambda c: [c.D + 1] * c.D), lambda c: 2, at_falling_and_longer,
         lambda depth: [(n, 0, 1) for n in range(2 * depth, 4 * depth + 1, 2)], EVEN),
    Form("dualpipe_v", "dualpipe_v", lambda c: 2 * c.N * (c.F + c.B) + (c.P - 1) * (c.F + c.I - c.Wg),
         exactly(lambda c: [2 * c.P + 1] * c.P), lambda c: 2, at_falling_and_longer,
         lambda depth: [(n, 0, 1) for n in range(depth, 4 * depth + 1)], EVEN),
    Form("chimera_w", "chimera_w", lambda c: c.N * (c.F + c.B) + (c.D // 2 // c.f - 1) * max(c.F, c.I),
         lambda c, found: max(found) <= c.D, lambda c: 2 * c.f, at_tiles, units_of_every_f, EVEN),
]  # fmt: skip

RATIOS = list(product(range(1, 5), repeat=3))


def hold(form, case):
    """Price the case, and compare everything the form says."""
    costs = Costs(case.F, case.B, case.I, case.Wg)
    program = record(find(form.name), case.shape, costs)
    check(program)
    timeline = price(program, costs)
    assert timeline.makespan == form.makespan(case), case
    assert form.peaks(case, timeline.peak_activations), (case, timeline.peak_activations)
    assert max(timeline.weight_copies) == form.weights(case), case


def shape(form, depth, asked):
    microbatches, pipes, chunks = asked
    return Shape(depth, microbatches, {"pipes": pipes, "chunks": chunks, "scale": form.scale})


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.id)
@settings(max_examples=8)
@given(data=st.data())
def test_a_closed_form_holds_in_a_sample_of_where_it_should(form, data):
    depth = data.draw(st.sampled_from([depth for depth in form.depths if depth <= 12]), "depth")
    asked = data.draw(st.sampled_from(list(form.shapes(depth))), "N, pipes, chunks")
    costs = data.draw(st.sampled_from([ratio for ratio in RATIOS if form.costs(*ratio)]), "F, I, Wg")
    scale = data.draw(st.integers(1, 9), "scale")
    hold(form, Case(shape(form, depth, asked), *(scale * cost for cost in costs)))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.id)
def test_a_closed_form_holds_at_depth_32(form):
    asked = list(form.shapes(32))
    costs = [ratio for ratio in RATIOS if form.costs(*ratio)]
    hold(form, Case(shape(form, 32, asked[len(asked) // 4]), *costs[-1]))


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "form, depth", [pytest.param(form, depth, id=f"{form.id}-{depth}") for form in FORMS for depth in form.depths]
)
def test_a_closed_form_holds_wherever_it_should(form, depth):
    costs = cycle([ratio for ratio in RATIOS if form.costs(*ratio)])
    shapes = list(form.shapes(depth))
    step = 1 if depth <= EVERY_SHAPE_TO else -(-len(shapes) // SHAPES_BEYOND)
    for asked in shapes[depth // 2 % step :: step]:
        hold(form, Case(shape(form, depth, asked), *next(costs)))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.id)
def test_a_closed_form_can_fail(form):
    """Another cost than the one it is told makes it wrong, so that holding means something."""
    depth = 4
    asked, costs = list(form.shapes(depth))[-1], next(ratio for ratio in RATIOS if form.costs(*ratio))
    priced = Case(shape(form, depth, asked), *costs)
    told = Case(priced.shape, costs[0] + 1, *costs[1:])
    timeline = price(record(find(form.name), priced.shape), Costs(priced.F, priced.B, priced.I, priced.Wg))
    assert timeline.makespan != form.makespan(told)
