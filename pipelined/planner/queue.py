"""The candidates of a search in the order of their bounds, those that do not fit the memory left out.

The layouts of a plan of teams are one entry: they are priced together, and leave in turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any

import numpy as np

from pipelined.planner.bounds import (
    Moves,
    least_bytes,
    least_bytes_of_layouts,
    least_of_layouts,
    least_seconds,
    peak_of,
)
from pipelined.planner.candidates import Candidate
from pipelined.planner.costs import can_split, split_model
from pipelined.planner.planned_model import LayoutSizes, PlannedModel, SizedLayouts, is_open
from pipelined.planner.recorded import RecordedPrograms
from pipelined.planner.request import SearchRequest
from pipelined.programs.plan import Plan
from pipelined.simulation import Machine, Workload


@dataclass(frozen=True)
class OpenTeams:
    """A plan of teams, the layouts of which are not known yet."""

    candidate: Candidate


@dataclass(frozen=True)
class TooBig:
    """A plan of teams with layouts that do not fit the memory."""

    candidate: Candidate


class Front:
    """The layouts of an open plan that may fit the memory, the lowest bound first.

    Args:
        bounds, held: seconds of a step, and bytes that the fullest rank holds at least, of each layout.
        limit: bytes that it may hold.
        least: further bounds, of each layout, which the plan with the next state may be below.

    Attributes:
        considered: all layouts.
        too_big: those that do not fit.
        lightened: the lowest bound of these; infinity: all fit.
    """

    def __init__(
        self, candidate: Candidate, layouts: Sequence[str], bounds: Moves, held: Moves, *, limit: float, least: Moves
    ):
        fits = held <= limit
        self._candidate = candidate
        self.considered, self.too_big = len(bounds), int((~fits).sum())
        self.lightened = float(bounds[~fits].min(initial=np.inf))
        places = np.flatnonzero(fits)
        self._layouts, self._bounds = layouts, np.maximum(bounds, least)
        self._places = places[np.lexsort((bounds[places], self._bounds[places]))]
        self._left = 0

    @property
    def bound(self) -> float:
        """That of the next layout; infinity: all have had their turn."""
        return float(self._bounds[self._places[self._left]]) if self._left < len(self._places) else float("inf")

    def take(self) -> Candidate:
        """The plan with the next layout."""
        layout = self._layouts[int(self._places[self._left])]
        self._left += 1
        return replace(self._candidate, plan=replace(self._candidate.plan, layout=layout))


Waiting = Candidate | OpenTeams | Front | TooBig


def sizes_of_layouts(
    model: PlannedModel, candidate: Candidate, workload: Workload, machine: Machine
) -> LayoutSizes | None:
    """What the members of each layout hold; None where the model does not say it at once."""
    if not isinstance(model, SizedLayouts):
        return None
    return model.layout_sizes(candidate.plan, machine, [bucket.stages for bucket in workload.parameters])


def held_by_layouts(candidate: Candidate, workload: Workload, sizes: LayoutSizes | None, layouts: int) -> Moves:
    """The least bytes of the fullest rank in each layout; 0 where the sizes are not known."""
    return np.zeros(layouts) if sizes is None else least_bytes_of_layouts(candidate, workload, sizes)


def with_updates(moves: Moves, workload: Workload, sizes: LayoutSizes | None) -> Moves:
    """The moves with the seconds in which a member updates what it holds beyond an even share, as `priced` has them."""
    if sizes is None or any(bucket.updaters > 1 for bucket in workload.parameters):
        return moves
    more = sizes.elements.sum(axis=1) / max(1, sum(bucket.elements for bucket in workload.parameters)) - 1
    updates = np.array([stage.update for stage in workload.stages])
    return np.stack([moves[..., 0], moves[..., 1] + np.maximum(0.0, more)[:, None] * updates], axis=2)


class Queue:
    """The candidates that may fit, the lowest bound first.

    A plan of teams waits with even shares and free moves. When its turn comes, the front of its layouts takes its
    place, with the bound of the next of them; only the layout at the front becomes a candidate. Beside the front waits
    the plan with the layouts that do not fit, which then gives way to the next state.

    Attributes:
        waiting: (bound, order, what waits), a heap.
        considered: candidates so far, each layout of a plan of teams among them.
        too_big: those that do not fit the memory.
        least: the least bytes over all candidates.
    """

    def __init__(self, request: SearchRequest):
        self.waiting: list[tuple[float, int, Waiting]] = []
        self.considered = 0
        self.too_big = 0
        self.least = inf
        self._request = request
        self._order = count()
        self._workloads = dict[tuple[Any, ...], tuple[Workload, float]]()
        self._lightened = set[str]()
        self._recorded = RecordedPrograms()

    def add(self, candidate: Candidate) -> None:
        """Add a candidate if it may fit."""
        if can_split(self._request.model, candidate.plan):
            self.considered += 1
            self._enqueue(candidate)

    def take(self, worst: float) -> Candidate | None:
        """The candidate with the lowest bound, of equal ones the first; None if it gives way or does not fit.

        Args:
            worst: seconds; layouts with a higher bound need not wait.
        """
        _, _, entry = heappop(self.waiting)
        match entry:
            case Candidate():
                return entry if self._fits(entry) else None
            case OpenTeams():
                self._add_layouts(entry.candidate, worst)
            case Front():
                candidate = entry.take()
                self._push(entry.bound, entry, worst)
                self._enqueue(candidate)
            case TooBig():
                self._lighten(entry.candidate)
        return None

    def _enqueue(self, candidate: Candidate) -> None:
        """Let a candidate that is counted wait, if it may fit."""
        request, (workload, nbytes) = self._request, self._sized(candidate)
        self.least = min(self.least, nbytes)
        if nbytes > request.memory_limit:
            self._leave_out(candidate)
            return
        splits = self._recorded.splits_backward(candidate.plan)
        bound = least_seconds(candidate, workload, request.machine, request.all_reduce, split_backward=splits)
        self._push(bound, OpenTeams(candidate) if is_open(candidate.plan) else candidate)

    def _push(self, bound: float, entry: Waiting, worst: float = inf) -> None:
        if bound <= worst and bound < inf:
            heappush(self.waiting, (bound, next(self._order), entry))

    def _fits(self, candidate: Candidate) -> bool:
        """Whether the memory suffices; without a flush only the simulation knows."""
        limit = self._request.memory_limit
        if limit == inf or not candidate.plan.flushes:
            return True
        nbytes = peak_of(candidate, self._workload(candidate.plan), self._recorded.in_time(candidate.plan))
        if nbytes > limit:
            self._leave_out(candidate)
        return nbytes <= limit

    def _leave_out(self, candidate: Candidate) -> None:
        """Count a candidate that does not fit, and add the teams of which members hold less, once."""
        self.too_big += 1
        self._lighten(candidate)

    def _lighten(self, candidate: Candidate) -> None:
        if candidate.plan.tensor > 1 and (plan := split_model(self._request.model).lighter(candidate.plan)):
            lighter = replace(candidate, plan=plan)
            if repr(lighter) not in self._lightened:
                self._lightened.add(repr(lighter))
                self.add(lighter)

    def _add_layouts(self, candidate: Candidate, worst: float) -> None:
        request, workload = self._request, self._workload(candidate.plan)
        layouts, moves = split_model(request.model).layouts(candidate.plan, request.machine)
        splits = self._recorded.splits_backward(candidate.plan)
        bound = partial(
            least_of_layouts, candidate, workload, request.machine, request.all_reduce, split_backward=splits
        )
        sizes = sizes_of_layouts(request.model, candidate, workload, request.machine)
        least = np.maximum(bound(moves=with_updates(moves, workload, sizes)), request.simulate(candidate).step_s)
        held = held_by_layouts(candidate, workload, sizes, len(layouts))
        front = Front(candidate, layouts, bound(moves=moves), held, limit=request.memory_limit, least=least)
        self.considered += front.considered - 1  # in place of their plan
        self.too_big += front.too_big
        self.least = min(self.least, held.min(initial=inf))
        self._push(front.bound, front, worst)
        if any(stage.update for stage in workload.stages):
            self._lighten(candidate)  # it moves more, but divides the update
        elif front.too_big:
            self._push(front.lightened, TooBig(candidate), worst)

    def _workload(self, plan: Plan) -> Workload:
        return self._sized(Candidate(plan))[0]

    def _sized(self, candidate: Candidate) -> tuple[Workload, float]:
        """The workload of a candidate's plan, and the least bytes of a rank. Plans of equal sizes share them.

        Placement and teams belong to the sizes: they decide which ranks divide an update.
        """
        plan, stage_map = candidate.plan, candidate.plan.stage_map
        sizes = plan.depth, plan.microbatch_size, plan.tensor, plan.layout
        key = sizes, stage_map.pieces, plan.flushes or stage_map.updates, frozenset(stage_map.placement.items())
        if key not in self._workloads:
            workload = self._request.workload(plan)
            self._workloads[key] = workload, least_bytes(candidate, workload)
        return self._workloads[key]
