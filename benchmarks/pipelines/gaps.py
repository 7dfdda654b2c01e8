"""Which stages' gradient sums a schedule leaves time for, and how much of those sums was not hidden.

A gap is read off the virtual clock; the hidden part of a sum is the part that does not lengthen a measured step.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipelined.programs.costs import Costs
from pipelined.programs.overlap import with_sums
from pipelined.programs.plan import Plan
from pipelined.programs.pricing.price import price
from pipelined.programs.pricing.timeline import Timed
from pipelined.programs.recording import record
from pipelined.schedules import find

HIDDEN_LIMIT = 0.10
"""What is promised: the part that is not hidden, over what all stages' sums take at once on idle devices."""


def gaps_of(plan: Plan, costs: Costs) -> dict[int, float]:
    """Idle seconds between a stage's last backward and its worker's last, where all its workers have any."""
    timeline = price(with_sums(record(find(plan.schedule), plan.shape, costs), "gap", costs), costs)
    idle: dict[int, list[float]] = defaultdict(list)
    for worker in timeline.workers:
        for at, timed in enumerate(worker):
            if not timed.instruction.computes:
                idle[timed.instruction.stage].append(_idle_after(worker[at:]))
    return {stage: min(found) for stage, found in sorted(idle.items()) if min(found) > 0}


def _idle_after(rest: Sequence[Timed]) -> float:
    return rest[-1].end - rest[0].end - sum(timed.end - timed.start for timed in rest[1:])


@dataclass(frozen=True)
class Overlap:
    """What the sums that a gap follows added to a step; an item a round.

    Args:
        gaps_s: idle seconds after each such stage's last backward.
        without_s: steps without any sum.
        hidden_s: steps with these stages' sums.
        alone_s: these sums on idle devices.
        all_s: all stages' sums at once on idle devices.
    """

    gaps_s: Mapping[int, float]
    without_s: tuple[float, ...]
    hidden_s: tuple[float, ...]
    alone_s: tuple[float, ...]
    all_s: tuple[float, ...]

    @property
    def long_enough(self) -> bool:
        """Whether these sums fit into the shortest of the gaps."""
        return bool(self.gaps_s) and statistics.median(self.alone_s) <= min(self.gaps_s.values())

    @property
    def more_s(self) -> float:
        """Seconds that a step became longer by, from round to round."""
        return statistics.median(some - none for some, none in zip(self.hidden_s, self.without_s, strict=True))

    @property
    def share(self) -> float:
        """The part not hidden, over all stages' sums at once."""
        return self.more_s / statistics.median(self.all_s)

    def to_dict(self) -> dict[str, object]:
        """As JSON can hold it."""
        derived = ("long_enough", "more_s", "share")
        return {**vars(self), "gaps_s": dict(self.gaps_s), **{name: getattr(self, name) for name in derived}}

    def line(self) -> str:
        """As a sentence."""
        if not self.gaps_s:
            return "no stage's last backward is followed by a gap on all its workers"
        gaps = ", ".join(f"stage {stage}: {gap * 1e3:.0f} ms" for stage, gap in self.gaps_s.items())
        fits = "" if self.long_enough else ", longer than the shortest gap"
        verdict = "within" if self.share <= HIDDEN_LIMIT else "over"
        return (
            f"sums before a gap ({gaps}) take {statistics.median(self.alone_s) * 1e3:.1f} ms alone{fits}; a step with "
            f"them is {self.more_s * 1e3:+.1f} ms longer than one without sums, {self.share:.1%} of all sums at once "
            f"({verdict} {HIDDEN_LIMIT:.0%})"
        )
