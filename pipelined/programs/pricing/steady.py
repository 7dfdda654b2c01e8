"""The steady state of a schedule without a flush: the seconds of a step, and the delays, once the pipe is full.

Steps overlap, and with stages unalike a step may take longer than the next one, so no single difference is the mean.
But the times depend on nothing except the earlier times, so they repeat: after some steps, the period, every start
comes the same number of seconds later. These seconds, divided by the steps of the period, are exact.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from pipelined.programs.costs import Costs
from pipelined.programs.pricing.price import price
from pipelined.programs.pricing.timeline import Timed
from pipelined.programs.recording import record
from pipelined.programs.staleness import staleness, steps_to_fill
from pipelined.schedules import Schedule, Shape

SEGMENTS = 4
"""The most segments to look for a period in, each twice as long as the one before."""
ROUNDING = 1e-9
"""Relative error of starts that count as equal."""


class TimedSegment(Protocol):
    """A segment with the times of each of its workers, as a timeline has them."""

    @property
    def workers(self) -> Sequence[Sequence[Timed]]: ...


S = TypeVar("S", bound=TimedSegment)


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

    Cost: it prices 2 (D/N + 3) steps, seldom several times this number.
    """
    step, segment = steady_step(lambda n: price(record(schedule, replace(shape, steps=n), costs), costs), shape)
    return Steady(step, staleness(segment.program))


def steady_step(run: Callable[[int], S], shape: Shape) -> tuple[float, S]:
    """The mean seconds of a step once the pipe is full, and the segment that shows it.

    Where `SEGMENTS` segments have no period, it is the mean step of the last one.

    Args:
        run: makes a segment of a number of steps.
    """
    fill_steps = steps_to_fill(shape)
    steps = 2 * (fill_steps + 1)
    max_steps = steps << SEGMENTS - 1
    segment = run(steps)
    while (step := _period_step(_starts(segment, steps, fill_steps), fill_steps - 1)) is None:
        if steps == max_steps:
            return _mean_step(segment, steps, fill_steps), segment
        steps *= 2
        segment = run(steps)
    return step, segment


def _mean_step(segment: TimedSegment, steps: int, fill_steps: int) -> float:
    """The mean step of a segment's second half, but at least what the busiest worker computes in a step."""
    starts = _starts(segment, steps, fill_steps)
    middle = len(starts) // 2
    slowest = max(last - first for first, last in zip(starts[middle], starts[-1], strict=True))
    busy = max(sum(timed.end - timed.start for timed in worker) for worker in segment.workers)
    return max(slowest / (len(starts) - 1 - middle), busy / steps)


def _starts(segment: TimedSegment, steps: int, fill_steps: int) -> list[list[float]]:
    """The starts of all computations of each step before the drain, worker by worker, microbatch by microbatch.

    Args:
        fill_steps: the steps that fill the pipe; the drain changes two fewer at the end.
    """
    starts: list[list[float]] = [[] for _ in range(steps)]
    for worker in segment.workers:
        in_order = sorted(worker, key=lambda timed: (timed.instruction.microbatch, timed.instruction.op))
        per_step = len(in_order) // steps
        for step, step_starts in enumerate(starts):
            step_starts += [timed.start for timed in in_order[step * per_step : (step + 1) * per_step]]
    return starts[: steps + 2 - fill_steps]


def _period_step(starts: Sequence[Sequence[float]], window: int) -> float | None:
    """The mean step of the shortest period by which the last steps repeat earlier ones; None: no period is seen.

    Args:
        window: the steps that must repeat: those with a microbatch in flight at once, and one more.
    """
    newest_starts = [start for step_starts in starts[-window:] for start in step_starts]
    tolerance = ROUNDING * newest_starts[-1]
    for period in range(1, len(starts) - window + 1):
        earlier_starts = [start for step_starts in starts[-window - period : -period] for start in step_starts]
        shift = newest_starts[-1] - earlier_starts[-1]
        if all(abs(new - old - shift) <= tolerance for new, old in zip(newest_starts, earlier_starts, strict=True)):
            return shift / period
    return None
