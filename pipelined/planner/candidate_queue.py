"""The candidates of a search in the order of their bounds, those that do not fit the memory left out.

The layouts of a plan of teams are one entry: they are priced together, and leave in turn.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any

import numpy as np

from pipelined.planner.bounds import LeastSeconds, least_bytes, least_bytes_of_layouts, least_seconds, peak_of
from pipelined.planner.candidates import Candidate
from pipelined.planner.model_costs import can_split, require_split_plans
from pipelined.planner.planner_model import LayoutSizes, PlannerModel, SizedLayouts, is_open
from pipelined.planner.recorded_programs import RecordedPrograms
from pipelined.planner.request import SearchRequest
from pipelined.programs.plan import Plan
from pipelined.sharding.search.problem import Numbers
from pipelined.simulation import Machine, Workload

Turn = Callable[[float], Candidate | None]
"""What happens at the turn of what waits, from the worst of the best seconds; a candidate if one is to be simulated."""


class LayoutQueue:
    """The layouts of an open plan that may fit the memory, the lowest bound first.

    Args:
        bounds: of the seconds of a step, one of each layout.
        tighter: a second lower bound of each layout; the next ZeRO state may beat it.
        held: the least bytes of a rank in each layout.
        memory_limit: bytes; a layout that holds more does not fit.

    Attributes:
        considered: all layouts.
        too_big: those that do not fit.
        bound_of_too_big: the lowest bound of these; infinity: all fit.
        least_bytes: of a rank, over all layouts.
    """

    def __init__(
        self,
        candidate: Candidate,
        layouts: Sequence[str],
        *,
        bounds: Numbers,
        tighter: Numbers,
        held: Numbers,
        memory_limit: float,
    ):
        self._candidate = candidate
        fits = held <= memory_limit
        self.least_bytes = float(held.min(initial=inf))
        self.considered = len(bounds)
        self.too_big = int((~fits).sum())
        self.bound_of_too_big = float(bounds[~fits].min(initial=inf))
        places = np.flatnonzero(fits)
        self._layouts = layouts
        self._bounds = np.maximum(bounds, tighter)
        self._places = places[np.lexsort((bounds[places], self._bounds[places]))]
        self._left = 0

    @property
    def bound(self) -> float:
        """That of the next layout; infinity: all have had their turn."""
        return float(self._bounds[self._places[self._left]]) if self._left < len(self._places) else inf

    def take(self) -> Candidate:
        """The plan with the next layout."""
        layout = self._layouts[int(self._places[self._left])]
        self._left += 1
        return replace(self._candidate, plan=replace(self._candidate.plan, layout=layout))


def sizes_of_layouts(
    model: PlannerModel, candidate: Candidate, workload: Workload, machine: Machine
) -> LayoutSizes | None:
    """What the members of each layout hold; None where the model does not say it at once."""
    if not isinstance(model, SizedLayouts):
        return None
    return model.layout_sizes(candidate.plan, machine, [bucket.stages for bucket in workload.parameters])


def with_updates(moves: Numbers, workload: Workload, sizes: LayoutSizes | None) -> Numbers:
    """The moves with the seconds in which a member updates what it holds beyond an even share, as `priced` has them."""
    if sizes is None or any(bucket.updaters > 1 for bucket in workload.parameters):
        return moves
    more = sizes.elements.sum(axis=1) / max(1, sum(bucket.elements for bucket in workload.parameters)) - 1
    updates = np.array([stage.update for stage in workload.stages])
    return np.stack([moves[..., 0], moves[..., 1] + np.maximum(0.0, more)[:, None] * updates], axis=2)


class CandidateQueue:
    """The candidates that may fit, the lowest bound first.

    A plan of teams waits with even shares and free moves. When its turn comes, the queue of its layouts takes its
    place, with the bound of the next of them; only that layout becomes a candidate. Beside this queue waits
    the plan with the layouts that do not fit, which then gives way to the next state.

    Attributes:
        waiting: (bound, order, turn), a heap.
        considered: candidates so far, each layout of a plan of teams among them.
        too_big: those that do not fit the memory.
        least_bytes: of the fullest rank, over all candidates.
    """

    def __init__(self, request: SearchRequest):
        self.waiting: list[tuple[float, int, Turn]] = []
        self.considered = 0
        self.too_big = 0
        self.least_bytes = inf
        self._request = request
        self._order = count()
        self._workloads = dict[tuple[Any, ...], tuple[Workload, float]]()
        self._lighter_added = set[str]()
        self._recorded = RecordedPrograms()

    @property
    def next_bound(self) -> float:
        """Seconds: no candidate that waits takes less."""
        return self.waiting[0][0]

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
        _, _, turn = heappop(self.waiting)
        return turn(worst)

    def _enqueue(self, candidate: Candidate) -> None:
        """Let a candidate that is counted wait, if it may fit."""
        request = self._request
        workload, nbytes = self._sized_workload(candidate)
        self.least_bytes = min(self.least_bytes, nbytes)
        if nbytes > request.memory_limit:
            self._leave_out(candidate)
            return
        turn = self._add_layouts if is_open(candidate.plan) else self._check_memory
        self._push(float(self._bound(candidate, workload)), partial(turn, candidate))

    def _bound(self, candidate: Candidate, workload: Workload, moves: Numbers | None = None) -> LeastSeconds:
        machine, algorithm = self._request.machine, self._request.all_reduce
        splits = self._recorded.splits_backward(candidate.plan)
        return least_seconds(candidate, workload, machine, algorithm, split_backward=splits, moves=moves)

    def _push(self, bound: float, turn: Turn, worst: float = inf) -> None:
        if bound <= worst and bound < inf:
            heappush(self.waiting, (bound, next(self._order), turn))

    def _check_memory(self, candidate: Candidate, worst: float) -> Candidate | None:
        """The candidate if its memory suffices; without a flush only the simulation knows."""
        limit = self._request.memory_limit
        if limit == inf or not candidate.plan.flushes:
            return candidate
        if peak_of(candidate, self._workload(candidate.plan), self._recorded.in_time(candidate.plan)) <= limit:
            return candidate
        self._leave_out(candidate)
        return None

    def _leave_out(self, candidate: Candidate) -> None:
        """Count a candidate that does not fit, and add the teams of which members hold less, once."""
        self.too_big += 1
        self._add_next_zero_state(candidate)

    def _add_next_zero_state(self, candidate: Candidate, worst: float = inf) -> None:
        """Add the teams of which members hold less, if there are any, once."""
        if candidate.plan.tensor == 1:
            return
        plan = require_split_plans(self._request.model).lighter(candidate.plan)
        if plan is None:
            return
        lighter = replace(candidate, plan=plan)
        if repr(lighter) not in self._lighter_added:
            self._lighter_added.add(repr(lighter))
            self.add(lighter)

    def _add_layouts(self, candidate: Candidate, worst: float) -> None:
        """Let the layouts of an open plan wait in its place, and the next state of its teams where it may be better."""
        workload = self._workload(candidate.plan)
        entry = self._layout_queue(candidate, workload)
        self.considered += entry.considered - 1  # in place of their plan
        self.too_big += entry.too_big
        self.least_bytes = min(self.least_bytes, entry.least_bytes)
        self._push(entry.bound, partial(self._take_layout, entry), worst)
        if any(stage.update for stage in workload.stages):
            self._add_next_zero_state(candidate)  # it moves more, but divides the update
        elif entry.too_big:
            self._push(entry.bound_of_too_big, partial(self._add_next_zero_state, candidate), worst)

    def _layout_queue(self, candidate: Candidate, workload: Workload) -> LayoutQueue:
        request = self._request
        layouts, moves = require_split_plans(request.model).layouts(candidate.plan, request.machine)
        sizes = sizes_of_layouts(request.model, candidate, workload, request.machine)
        updated = self._bound(candidate, workload, with_updates(moves, workload, sizes))
        return LayoutQueue(
            candidate,
            layouts,
            bounds=np.asarray(self._bound(candidate, workload, moves)),
            tighter=np.maximum(updated, request.simulate(candidate).step_s),
            held=np.zeros(len(layouts)) if sizes is None else least_bytes_of_layouts(candidate, workload, sizes),
            memory_limit=request.memory_limit,
        )

    def _take_layout(self, entry: LayoutQueue, worst: float) -> None:
        candidate = entry.take()
        self._push(entry.bound, partial(self._take_layout, entry), worst)
        self._enqueue(candidate)

    def _workload(self, plan: Plan) -> Workload:
        return self._sized_workload(Candidate(plan))[0]

    def _sized_workload(self, candidate: Candidate) -> tuple[Workload, float]:
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
