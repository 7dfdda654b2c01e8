"""What a step is once the pipe is full: the time and the delays that a schedule without a flush settles at.

The rule: priced, not assumed; two stretches that differ by some steps differ by what these cost.
"""

from dataclasses import dataclass, replace

from pipelined.programs.price import Costs, price
from pipelined.programs.record import record
from pipelined.programs.staleness import staleness, steps_to_fill
from pipelined.schedules import Schedule, Shape

FURTHER = 2
"""Steps between the two stretches; a slow link may make every other step alike, rather than every one."""


@dataclass(frozen=True)
class Steady:
    """A step in the midst of a stretch.

    Args:
        step: seconds.
        staleness: for each stage the greatest delay of a gradient, in updates.
    """

    step: float
    staleness: list[int]


def steady(schedule: Schedule, shape: Shape, costs: Costs) -> Steady:
    """Price a schedule without a flush long enough that it has settled.

    Cost: that of pricing about 2 (D/N + 4) steps.
    """
    full = steps_to_fill(shape)
    short, long = (record(schedule, replace(shape, steps=steps), costs) for steps in (full, full + FURTHER))
    return Steady((price(long, costs).makespan - price(short, costs).makespan) / FURTHER, staleness(long))
