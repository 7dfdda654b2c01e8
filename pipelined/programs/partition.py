"""Partition of a row of layers into stages so that the slowest stage is as fast as possible. No torch, no network."""

from collections.abc import Callable
from functools import cache, lru_cache
from itertools import accumulate

from pipelined.programs.plan import PlanError


def partition(costs: list[float], depth: int) -> list[range]:
    """Cut layers into `depth` consecutive, non-empty ranges such that the largest cost of a range is minimal.

    Every layer is in exactly one range. Among equally good cuts the first found is returned, the same on every rank.

    Args:
        costs: relative cost of each layer.
        depth: the number of stages, D.
    Raises:
        PlanError: there are more stages than layers.
    Cost: O(depth · layers²) additions; 64 layers and 32 stages take about 0.1 s.
    """
    layers = len(costs)
    if depth > layers:
        fact = f"more stages than layers (stages: {depth}, layers: {layers})"
        raise PlanError(f"{fact}; lower `depth=` to {layers} or less")
    cuts = []
    start = 0
    best = _best_cuts(tuple(costs))
    for stages in range(1, depth):  # from the last stage on, so that each recursive call is already cached
        for first_layer in range(depth - stages, layers - stages + 1):
            best(first_layer, stages)
    for stages in range(depth, 0, -1):
        _, end = best(start, stages)
        cuts.append(range(start, end))
        start = end
    return cuts


@lru_cache(maxsize=16)
def _best_cuts(costs: tuple[float, ...]) -> Callable[[int, int], tuple[float, int]]:
    """The best cut of each end of these layers; it is found once for all depths."""
    layers = len(costs)
    total = [0.0, *accumulate(costs)]

    @cache
    def best(start: int, stages: int) -> tuple[float, int]:
        """The minimal largest cost of the layers from `start` in `stages` stages, and the end of the first stage."""
        if stages == 1:
            return total[layers] - total[start], layers
        ends = range(start + 1, layers - stages + 2)
        return min((max(total[end] - total[start], best(end, stages - 1)[0]), end) for end in ends)

    return best
