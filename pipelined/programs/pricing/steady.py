"""The steady state of a schedule without a flush: the seconds of a step, and the delays, once the pipe is full.

Two segments are priced; their difference in time is the cost of their difference in steps.
"""

from dataclasses import dataclass, replace

from pipelined.programs.pricing.price import Costs, price
from pipelined.programs.record import record
from pipelined.programs.staleness import staleness, steps_to_fill
from pipelined.schedules import Schedule, Shape

STEPS_BETWEEN = 2
"""Steps by which the two segments differ. Two, because over a slow link the pattern may repeat every second step."""


@dataclass(frozen=True)
class Steady:
    """A step in the steady state.

    Args:
        step: seconds.
        staleness: the greatest delay of a gradient, in updates, for each stage.
    """

    step: float
    staleness: list[int]


def steady(schedule: Schedule, shape: Shape, costs: Costs) -> Steady:
    """Price a schedule without a flush over enough steps to reach the steady state.

    Cost: that of pricing about 2 (D/N + 4) steps.
    """
    full = steps_to_fill(shape)
    short, long = (record(schedule, replace(shape, steps=steps), costs) for steps in (full, full + STEPS_BETWEEN))
    return Steady((price(long, costs).makespan - price(short, costs).makespan) / STEPS_BETWEEN, staleness(long))
