"""The layouts of a plan of teams as one entry of the search: they are priced together, and leave in turn."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipelined.planner.bounds import least_bytes_of_layouts
from pipelined.planner.candidates import Candidate
from pipelined.planner.planned_model import PlannedModel, SizedLayouts
from pipelined.simulation.machine import Machine
from pipelined.simulation.workload import Workload


class Front:
    """The layouts of an open plan that may fit the memory, the lowest bound first.

    Args:
        bounds: seconds of a step, of each layout.
        held: bytes that the fullest rank holds at least, of each layout.
        limit: bytes that it may hold.

    Attributes:
        considered: all layouts.
        too_big: those that do not fit.
        lightened: the lowest bound of these; infinity: all fit.
    """

    def __init__(self, splits: Sequence[str], bounds: NDArray[np.float64], held: NDArray[np.float64], limit: float):
        fits = held <= limit
        self.considered, self.too_big = len(bounds), int((~fits).sum())
        self.lightened = float(bounds[~fits].min(initial=np.inf))
        places = np.flatnonzero(fits)
        self._places = places[np.argsort(bounds[places], kind="stable")]
        self._splits, self._bounds = splits, bounds
        self._left = 0

    @property
    def bound(self) -> float:
        """That of the next layout; infinity: there is none."""
        return float(self._bounds[self._places[self._left]]) if self._left < len(self._places) else float("inf")

    def take(self) -> str:
        """The next layout."""
        self._left += 1
        return self._splits[int(self._places[self._left - 1])]


def held_by_layouts(
    model: PlannedModel, candidate: Candidate, workload: Workload, machine: Machine, layouts: int
) -> NDArray[np.float64]:
    """The least bytes of the fullest rank in each layout; 0 where the model does not say them at once."""
    if not isinstance(model, SizedLayouts):
        return np.zeros(layouts)
    groups = [group.stages for group in workload.parameters]
    return least_bytes_of_layouts(candidate, workload, model.layout_sizes(candidate.plan, machine, groups))
