"""Chimera-W's bubble beside (D/2f-1) max(F, I), over a grid of costs: `python -m benchmarks.chimera_w_bound`.

Costs are whole seconds, so every sum of them is exact and no excess is rounding. Nothing is timed: times are the
virtual clock's, and need neither ranks nor torch.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, product
from math import gcd

import tyro

from benchmarks.harness.results import Reported, tell
from pipelined.programs.costs import Costs
from pipelined.programs.pricing.price import price_schedule
from pipelined.programs.proof.check import check
from pipelined.schedules import Shape, find

Triple = tuple[int, int, int]
"""Seconds of a forward, an input half and a weight half."""

BLOCKS = [(20, 21, 19), (20, 22, 18), (20, 23, 17), (20, 24, 16)]
"""A transformer block's: its backward takes twice a forward, 52 to 60 % of it in the input half."""

TILED, EVEN, UNEVEN = "tiled", "even", "uneven"


@dataclass(frozen=True)
class Options(Reported):
    """Hold Chimera-W's bubble to its bound."""

    largest: int = 4
    """Longest cost, in seconds; all ratios of whole seconds up to it are tried, and a transformer block's."""
    depths: tuple[int, ...] = (4, 8, 12, 16)
    """Stages, D; every number of pipes is tried."""
    units: tuple[int, ...] = (1, 2, 4)
    """Units of D microbatches, K."""


@dataclass(frozen=True)
class Found:
    """What one triple of costs came to.

    Args:
        excess: seconds by which the bubble is longer, by (D, f, K), divided by (D/2f-1) Wg, which is the bound.
    """

    costs: Triple
    excess: dict[Triple, float]

    def longest(self, units: int) -> tuple[float, Triple]:
        """The longest excess with K units, and where it is."""
        return max((excess, (-d, -f, k)) for (d, f, k), excess in self.excess.items() if k == units)

    @property
    def exact(self) -> bool:
        return not any(self.excess.values())

    @property
    def within(self) -> bool:
        return max(self.excess.values()) <= 1


def kind(costs: Triple) -> str:
    """In which of the regions of docs/chimera_w.md these costs lie."""
    forward, backward_input, backward_weight = costs
    if forward > backward_input + backward_weight:
        return UNEVEN
    short = backward_input == forward or backward_input <= backward_weight
    if short and backward_input <= forward <= 2 * backward_weight:
        return TILED
    even = 2 * (backward_input - forward) <= backward_weight and 2 * max(costs[:2]) <= 3 * backward_weight
    return EVEN if even else UNEVEN


def grid(largest: int) -> list[Triple]:
    """Every ratio of whole seconds up to the largest, once, and a block's."""
    cube = product(range(1, largest + 1), repeat=3)
    return [costs for costs in cube if gcd(*costs) == 1] + BLOCKS


def find_excess(costs: Triple, options: Options) -> Found:
    """Price every shape at these costs. Cost: about 30 µs an instruction."""
    return Found(costs, {shape: _excess(costs, *shape) for shape in _shapes(options)})


def _shapes(options: Options) -> Iterator[Triple]:
    """(D, f, K) of all shapes that can have a bubble at all."""
    for depth in options.depths:
        for each_way in range(1, depth // 2):
            if depth // 2 % each_way == 0:
                yield from ((depth, each_way, units) for units in options.units)


def _excess(costs: Triple, depth: int, each_way: int, units: int) -> float:
    forward, backward_input, backward_weight = costs
    places, microbatches = depth // 2 // each_way - 1, units * depth
    seconds = Costs(forward, backward_input + backward_weight, backward_input, backward_weight)
    timeline = price_schedule(find("chimera_w"), Shape(depth, microbatches, {"pipes": 2 * each_way}), seconds)
    check(timeline.program)
    if max(timeline.peak_activations) > depth:
        raise AssertionError(f"more than D microbatches alive at {costs} (D: {depth}, f: {each_way}, K: {units})")
    bubble = timeline.makespan - microbatches * sum(costs)
    return (bubble - places * max(forward, backward_input)) / (places * backward_weight)


def summary(found: list[Found]) -> Iterator[str]:
    """One row a region: how many costs, how many of them exact, and within the bound, and the longest excess."""
    yield "| region | costs | exact everywhere | within the bound everywhere | longest excess |"
    yield "|---|---|---|---|---|"
    for region in (TILED, EVEN, UNEVEN):
        inside = [one for one in found if kind(one.costs) == region]
        longest = max((max(one.excess.values()) for one in inside), default=0)
        exact, within = sum(one.exact for one in inside), sum(one.within for one in inside)
        yield f"| {region} | {len(inside)} | {exact} | {within} | {longest:.2f} |"


def exceptions(found: list[Found], units: tuple[int, ...]) -> Iterator[str]:
    """One row for costs at which some shape's bubble is longer than (D/2f-1) max(F, I), by region."""
    yield "| region | F | I | Wg | " + " | ".join(f"K = {k}" for k in units) + " | at D, f | within |"
    yield "|---|" + "---|" * (len(units) + 5)
    longer = sorted((one for one in found if not one.exact), key=lambda one: (kind(one.costs), one.costs))
    for region, several in groupby(longer, key=lambda one: kind(one.costs)):
        for one in several:
            longest = [one.longest(k) for k in units]
            depth, each_way, _ = longest[-1][1]
            cells = [region, *one.costs, *(f"{excess:.2f}" for excess, _ in longest), f"{-depth}, {-each_way}"]
            yield f"| {' | '.join(map(str, cells))} | {'yes' if one.within else 'no'} |"


def main() -> int:
    """Read the flags, go through the grid, and print both tables."""
    options = tyro.cli(Options, prog="python -m benchmarks.chimera_w_bound")
    found = [find_excess(costs, options) for costs in grid(options.largest)]
    raw = [{"costs": one.costs, "exact": one.exact, "within": one.within} for one in found]
    tell(options, raw, lambda: "\n".join([*summary(found), "", *exceptions(found, options.units)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
