"""The microbatches that a cluster has alive in each stage, and its predicted speed with them.

Little's law would do if a worker always had the right message. Gradients come first, so a stage may wait for an
activation that a busier one left behind, and then needs more. So each number is priced: the schedule's own coroutines
run once with the cluster's seconds and lines.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import le

from pipelined.ravnest.planning.pipe_pricing import PipeCosts, price_steady_step
from pipelined.ravnest.planning.pool import PoolNode
from pipelined.ravnest.planning.stage_sizes import StageSizes, line_seconds, littles_law
from pipelined.schedules import AHEAD, MAX_AHEAD, Shape, find

TARGET_SHARE = 0.95
"""The part of the rate of the slowest node or line that microbatches alive reach, where `ahead` does not set them."""
MAX_MULTIPLE = 2.5
"""The most microbatches alive that are tried, as a multiple of those by Little's law."""
MAX_PRICED = 64
"""Numbers alive that are priced, about; of more, evenly spaced ones."""
MICROBATCHES = 12
"""Microbatches a step that is priced, at least: as many round trips of those alive, so that their pattern is whole."""

LEAST_RATE = 0.9
"""The least part of a cluster's rate that fewer microbatches alive keep, where they leave room for a backup."""
FEWER_FOR_BACKUP = "fewer microbatches alive leave room for a backup"


@dataclass(frozen=True)
class Pace:
    """Microbatches alive in each stage, and what they reach.

    Args:
        seconds: of a microbatch in the steady state; None where a speed is not known, as `share`.
        share: the rate as a part of that of the slowest node or line.
        shortfall: why the share is below `TARGET_SHARE`, in words; empty where it is not.
    """

    alive: Sequence[int]
    seconds: float | None = None
    share: float | None = None
    shortfall: str = ""


def pace_of(nodes: Sequence[PoolNode], cut: Sequence[range], sizes: StageSizes) -> Pace:
    """Microbatches alive for a cut that fits with those of its rules: these, if `ahead` is set or a speed unknown.

    Else the least from Little's law up that fit and reach `TARGET_SHARE`, or the most that fit; where not even those of
    the law do, the most below.

    Cost: some 10 ms for each number tried of a cluster of four nodes, 100 ms of ten.
    """
    usual = [sizes.rules.alive(stage, len(cut)) for stage in range(len(cut))]
    speeds = [node.flops for node in nodes if node.flops]
    if len(speeds) < len(cut):
        return Pace(usual)
    pipe = _Pipe(cut, sizes, speeds, nodes)
    if sizes.rules.ahead is not None:
        return pipe.priced(usual, f"--ahead is {sizes.rules.ahead}")
    return pipe.best_pace([node.ram for node in nodes])


def with_fewer(
    nodes: Sequence[PoolNode],
    cut: Sequence[range],
    sizes: StageSizes,
    pace_before: Pace,
    has_room: Callable[[Sequence[int]], bool],
) -> Pace | None:
    """The pace of a cluster with fewer microbatches alive than before, the most that leave room for a backup.

    Args:
        pace_before: of the same cluster.
        has_room: whether these alive leave it.
    Returns: None: no number does, or only below `LEAST_RATE` of the rate, or it is given, or a speed is unknown.
    """
    if pace_before.share is None or sizes.rules.ahead is not None:
        return None
    pipe = _Pipe(cut, sizes, [node.flops for node in nodes if node.flops], nodes)
    candidates = map(pipe.in_proportion, range(pace_before.alive[0] - 1, 0, -1))
    alive = next(filter(has_room, candidates), None)
    pace = pipe.priced(alive, FEWER_FOR_BACKUP) if alive else None
    return pace if pace and pace.share and pace.share >= LEAST_RATE * pace_before.share else None


class _Pipe:
    def __init__(self, cut: Sequence[range], sizes: StageSizes, speeds: Sequence[float], nodes: Sequence[PoolNode]):
        work = [float(sizes.work[layers.start, layers.stop]) for layers in cut]
        seconds = [operations / speed for operations, speed in zip(work, speeds, strict=True)]
        lines = line_seconds(sizes.layers, cut, [node.bandwidth / sizes.rules.coded for node in nodes])
        delays = (max(node.delay, next_node.delay) for node, next_node in pairwise(nodes))
        ways = [line + delay for line, delay in zip(lines, delays, strict=True)]
        forward = sizes.rules.forward_share
        self._cut, self._sizes = cut, sizes
        self._costs = PipeCosts(
            [step_s * forward for step_s in seconds], [step_s * (1 - forward) for step_s in seconds], ways
        )
        self._slowest = max([*seconds, *lines])
        self._law = littles_law(seconds, ways, self._slowest)

    def best_pace(self, rams: Sequence[int]) -> Pace:
        limit = min(MAX_AHEAD, math.ceil(MAX_MULTIPLE * self._law[0]))
        fitting = [
            alive for first_alive in range(1, limit + 1) if self._fits(alive := self.in_proportion(first_alive), rams)
        ]
        shortfall = f"no number alive up to {MAX_MULTIPLE:g} times the law's reaches {TARGET_SHARE:.0%}"
        if len(fitting) < limit:
            shortfall = "more microbatches alive do not fit"
        candidates = fitting[self._law[0] - 1 :] or fitting[-1:]
        for alive in candidates[:: max(1, len(candidates) // MAX_PRICED)]:
            pace = self.priced(alive, shortfall)
            if not pace.shortfall:
                break
        return pace

    def priced(self, alive: Sequence[int], shortfall: str) -> Pace:
        """The pace with these alive; beyond `MAX_MULTIPLE` times the law's more are priced as so many."""
        limits = [min(count, math.ceil(MAX_MULTIPLE * law)) for count, law in zip(alive, self._law, strict=True)]
        microbatches = -(-MICROBATCHES // limits[0]) * limits[0]
        shape = Shape(len(alive), microbatches, {AHEAD.name: ",".join(map(str, limits))})
        share = min(1.0, microbatches * self._slowest / price_steady_step(find("async_1f1b"), shape, self._costs))
        return Pace(alive, self._slowest / share, share, shortfall if share < TARGET_SHARE else "")

    def in_proportion(self, first_alive: int) -> list[int]:
        """The microbatches alive in each stage, in proportion to the law's, for so many in the first stage."""
        return [-(-first_alive * alive // self._law[0]) for alive in self._law]

    def _fits(self, alive: Sequence[int], rams: Sequence[int]) -> bool:
        return all(map(le, self._sizes.of_cut(self._cut, alive), rams))
