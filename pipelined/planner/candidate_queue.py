"""The candidates of a search in the order of their bounds, those that do not fit the memory left out.

The layouts of a plan of teams are one entry: they are priced together, and become candidates one after another.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any

import numpy as np

from pipelined.planner.bounds import LeastSeconds, least_bytes, least_bytes_of_layouts, least_seconds, peak_bytes
from pipelined.planner.candidates import Candidate
from pipelined.planner.model_costs import can_split, require_split_plans
from pipelined.planner.planner_model import LayoutSizes, PlannerModel, SizedLayouts, is_open
from pipelined.planner.recorded_programs import RecordedPrograms
from pipelined.planner.request import SearchRequest
from pipelined.programs.plan import Plan
from pipelined.sharding.search.problem import Numbers
from pipelined.simulation import Machine, Workload


class LayoutQueue:
    """The layouts of an open plan that may fit the memory, the lowest bound first.

    Args:
        bounds: lower bounds of the seconds of a step, one of each layout.
        tighter_bounds: a second lower bound of each layout; the next state of ZeRO may beat it.
        rank_bytes: the least bytes of a rank in each layout.
        memory_limit: bytes; a layout that takes more of a rank does not fit.

    Attributes:
        considered: the number of layouts.
        too_big: the number of layouts that do not fit.
        bound_of_too_big: the lowest bound of these; infinity: all fit.
        least_bytes: the least bytes of a rank, over all layouts.
    """

    def __init__(
        self,
        candidate: Candidate,
        layouts: Sequence[str],
        *,
        bounds: Numbers,
        tighter_bounds: Numbers,
        rank_bytes: Numbers,
        memory_limit: float,
    ):
        self._candidate = candidate
        fits = rank_bytes <= memory_limit
        self.least_bytes = float(rank_bytes.min(initial=inf))
        self.considered = len(bounds)
        self.too_big = int((~fits).sum())
        self.bound_of_too_big = float(bounds[~fits].min(initial=inf))
        self._layouts = layouts
        self._bounds = np.maximum(bounds, tighter_bounds)
        fitting = np.flatnonzero(fits)
        self._by_bound = fitting[np.lexsort((bounds[fitting], self._bounds[fitting]))]  # indices of layouts
        self._taken = 0

    @property
    def bound(self) -> float:
        """The bound of the next layout; infinity: none is left."""
        return float(self._bounds[self._by_bound[self._taken]]) if self._taken < len(self._by_bound) else inf

    def take(self) -> Candidate:
        """The plan with the next layout."""
        layout = self._layouts[int(self._by_bound[self._taken])]
        self._taken += 1
        return replace(self._candidate, plan=replace(self._candidate.plan, layout=layout))


def sizes_of_layouts(
    model: PlannerModel, candidate: Candidate, workload: Workload, machine: Machine
) -> LayoutSizes | None:
    """The sizes of what members hold in each layout; None: the model does not compute them at once."""
    if not isinstance(model, SizedLayouts):
        return None
    return model.layout_sizes(candidate.plan, machine, [bucket.stages for bucket in workload.parameters])


def with_updates(moves: Numbers, workload: Workload, sizes: LayoutSizes | None) -> Numbers:
    """The moves with the seconds in which a member updates what it holds beyond an even share, as `priced` has them."""
    if sizes is None or any(bucket.updaters > 1 for bucket in workload.parameters):
        return moves
    excess = sizes.elements.sum(axis=1) / max(1, sum(bucket.elements for bucket in workload.parameters)) - 1
    updates = np.array([stage.update for stage in workload.stages])
    return np.stack([moves[..., 0], moves[..., 1] + np.maximum(0.0, excess)[:, None] * updates], axis=2)


Expansion = Callable[[], "list[QueueEntry]"]
"""Plans that wait as one entry: the entries that take its place when it is first."""
QueueEntry = tuple[float, Candidate | Expansion]
"""What waits: its bound in seconds, and a candidate, or plans that are not yet candidates."""


class CandidateQueue:
    """The candidates that may fit, the lowest bound first.

    A plan of teams waits with even shares and free moves. When it is first, the queue of its layouts takes its place,
    with the bound of the next layout, which becomes a candidate. If layouts do not fit, the plan with the next state of
    ZeRO waits, too, with the lowest bound of these.

    Attributes:
        waiting: (bound, order, what waits), a heap.
        considered: candidates so far, each layout of a plan of teams among them.
        too_big: the candidates that do not fit the memory.
        least_bytes: the least bytes of the fullest rank, over all candidates.
    """

    def __init__(self, request: SearchRequest):
        self.waiting: list[tuple[float, int, Candidate | Expansion]] = []
        self.considered = 0
        self.too_big = 0
        self.least_bytes = inf
        self._request = request
        self._order = count()
        self._workloads = dict[tuple[Any, ...], tuple[Workload, float]]()
        self._next_states = set[str]()  # plans that were added with the next state of ZeRO
        self._programs = RecordedPrograms()

    @property
    def next_bound(self) -> float:
        """Seconds: no candidate that waits takes less."""
        return self.waiting[0][0]

    def add(self, candidate: Candidate) -> None:
        """Add a candidate if it may fit."""
        self._push(self._entries(candidate))

    def take(self, worst: float) -> Candidate | None:
        """Take the first entry: the candidate to simulate, or None if it does not fit, or if it was several plans.

        Args:
            worst: seconds; what takes the entry's place waits if its bound is not higher.
        """
        _, _, entry = heappop(self.waiting)
        if not isinstance(entry, Candidate):
            self._push(entry(), worst)
        elif self._fits(entry):
            return entry
        else:
            self._push(self._leave_out(entry), worst)
        return None

    def _push(self, entries: Sequence[QueueEntry], worst: float = inf) -> None:
        for bound, entry in entries:
            if bound <= worst and bound < inf:
                heappush(self.waiting, (bound, next(self._order), entry))

    def _entries(self, candidate: Candidate) -> list[QueueEntry]:
        """As `_entries_that_fit`, for a candidate that is not yet counted."""
        if not can_split(self._request.model, candidate.plan):
            return []
        self.considered += 1
        return self._entries_that_fit(candidate)

    def _entries_that_fit(self, candidate: Candidate) -> list[QueueEntry]:
        """A candidate's entry; if it cannot fit, that of its teams with the next state of ZeRO, or none."""
        workload, nbytes = self._sized_workload(candidate)
        self.least_bytes = min(self.least_bytes, nbytes)
        if nbytes > self._request.memory_limit:
            return self._leave_out(candidate)
        bound = float(self._bound(candidate, workload))
        return [(bound, partial(self._expand_layouts, candidate) if is_open(candidate.plan) else candidate)]

    def _bound(self, candidate: Candidate, workload: Workload, moves: Numbers | None = None) -> LeastSeconds:
        machine, algorithm = self._request.machine, self._request.all_reduce
        splits = self._programs.splits_backward(candidate.plan)
        return least_seconds(candidate, workload, machine, algorithm, split_backward=splits, moves=moves)

    def _fits(self, candidate: Candidate) -> bool:
        """Whether a candidate's exact memory suffices; without a flush only its simulation knows."""
        limit = self._request.memory_limit
        if limit == inf or not candidate.plan.flushes:
            return True
        return peak_bytes(candidate, self._workload(candidate.plan), self._programs.in_time(candidate.plan)) <= limit

    def _leave_out(self, candidate: Candidate) -> list[QueueEntry]:
        """Count a candidate that does not fit; its teams may fit in the next state of ZeRO."""
        self.too_big += 1
        return self._next_zero_state(candidate)

    def _next_zero_state(self, candidate: Candidate) -> list[QueueEntry]:
        """The entry of the same teams with members that hold less; none if there is no such state, or it was added."""
        is_team = candidate.plan.tensor > 1
        plan = require_split_plans(self._request.model).in_next_zero_state(candidate.plan) if is_team else None
        if plan is None:
            return []
        in_next_state = replace(candidate, plan=plan)
        if repr(in_next_state) in self._next_states:
            return []
        self._next_states.add(repr(in_next_state))
        return self._entries(in_next_state)

    def _expand_layouts(self, candidate: Candidate) -> list[QueueEntry]:
        """The queue of an open plan's layouts, and the next state of its teams if it may be better."""
        workload = self._workload(candidate.plan)
        layouts = self._layout_queue(candidate, workload)
        self.considered += layouts.considered - 1  # in place of their plan
        self.too_big += layouts.too_big
        self.least_bytes = min(self.least_bytes, layouts.least_bytes)
        next_layout: QueueEntry = (layouts.bound, partial(self._take_layout, layouts))
        if any(stage.update for stage in workload.stages):  # the next state moves more, but divides the update
            return [next_layout, *self._next_zero_state(candidate)]
        if layouts.too_big:
            return [next_layout, (layouts.bound_of_too_big, partial(self._next_zero_state, candidate))]
        return [next_layout]

    def _layout_queue(self, candidate: Candidate, workload: Workload) -> LayoutQueue:
        request = self._request
        layouts, moves = require_split_plans(request.model).layouts(candidate.plan, request.machine)
        sizes = sizes_of_layouts(request.model, candidate, workload, request.machine)
        with_update = self._bound(candidate, workload, with_updates(moves, workload, sizes))
        return LayoutQueue(
            candidate,
            layouts,
            bounds=np.asarray(self._bound(candidate, workload, moves)),
            tighter_bounds=np.maximum(with_update, request.simulate(candidate).step_s),
            rank_bytes=np.zeros(len(layouts)) if sizes is None else least_bytes_of_layouts(candidate, workload, sizes),
            memory_limit=request.memory_limit,
        )

    def _take_layout(self, layouts: LayoutQueue) -> list[QueueEntry]:
        """The other layouts of the queue, and the next one as a candidate."""
        candidate = layouts.take()
        return [(layouts.bound, partial(self._take_layout, layouts)), *self._entries_that_fit(candidate)]

    def _workload(self, plan: Plan) -> Workload:
        return self._sized_workload(Candidate(plan))[0]

    def _sized_workload(self, candidate: Candidate) -> tuple[Workload, float]:
        """The workload of a candidate's plan, and the least bytes of a rank. Plans of equal sizes share them.

        Placement and teams belong to the sizes: they decide which ranks divide an update.
        """
        plan = candidate.plan
        stage_map = plan.stage_map
        sizes = plan.depth, plan.microbatch_size, plan.tensor, plan.layout
        key = sizes, stage_map.pieces, plan.flushes or stage_map.updates, frozenset(stage_map.placement.items())
        if key not in self._workloads:
            workload = self._request.workload(plan)
            self._workloads[key] = workload, least_bytes(candidate, workload)
        return self._workloads[key]
