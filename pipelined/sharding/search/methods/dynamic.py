"""Dynamic programming along the chain: exact, with any limit of memory.

A label is a beginning of the chain: its time and the bytes it holds. Among labels that end in the same layout only
those stay that no other beats in both (a Pareto front), since whatever follows costs the same for all of them. A choice
that the chain meets again, the layout of the residual stream, is tried option by option.

A front has any number of costs, such as seconds of each direction, numbers of parameters and bytes kept.
"""

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelined.sharding.search.problem import ROUNDING, Numbers, Problem, SearchOutcome, Strategy

Indices = NDArray[np.int64]


class Labels(NamedTuple):
    """Beginnings of the chain.

    Args:
        option: the last choice's option.
        costs: of the beginning [label, cost]: times, then bytes held.
        parent: index of the label that it continues, among those of the choice before.
    """

    option: Indices
    costs: Numbers
    parent: Indices

    def select(self, indices: NDArray[Any]) -> "Labels":
        """Some of the labels, by index or by mask."""
        return Labels(self.option[indices], self.costs[indices], self.parent[indices])

    def extend(self, option: int, costs: Numbers | float) -> "Labels":
        """All of them with one more choice."""
        return Labels(np.full(len(self.option), option), self.costs + costs, self.parent)


def search(problem: Problem, limit: float = inf, *, evaluations: int = 0, seed: int = 0) -> SearchOutcome:
    """The strategy that takes the least time among those that hold at most `limit` bytes.

    Args:
        evaluations, seed: not used; every search takes them.
    Cost: for each choice, labels times the layouts that follow, and a sort of each; labels stay in the hundreds.
    """
    n = problem.microbatches
    free = 1.0 if limit < inf else 0.0  # where any number of bytes fits, time alone decides
    costs = [
        np.stack([n * choice.per_microbatch_s + choice.per_step_s, free * choice.memory_bytes], axis=1)
        for choice in problem.choices
    ]
    moves = [n * moved[..., None] for moved in problem.moves]
    chain_labels = _ChainLabels(problem.order, costs, moves, (limit - problem.fixed) * ROUNDING)
    best = SearchOutcome(None, inf, 0)
    for options in chain_labels.starts():
        history = chain_labels.labels(options, below=best.seconds)
        if history:
            seconds = history[-1].costs[:, 0]
            index = int(np.argmin(seconds))
            best = SearchOutcome(chain_labels.strategy(history, index), float(seconds[index]), 0)
    return best._replace(evaluated=chain_labels.evaluated)


def front(
    order: Sequence[int], costs: Sequence[Numbers], moves: Sequence[Numbers], limit: float = inf, most: int = 0
) -> tuple[list[Strategy], Numbers]:
    """The strategies that no other beats in all costs together, and their costs [strategy, cost].

    Whatever price grows with every cost, its cheapest strategy is among them.

    Args:
        order: see `Problem`.
        costs: of each choice [option, cost]; the last is held.
        moves: between neighbours in this order [option of one, option of the next, cost]; costs that are left out at
            the end are 0.
        limit: the most that may be held.
        most: about the most labels that end in the same layout; of more, some are left out, each beside one that costs
            about as much. 0: any number.
    """
    chain_labels = _ChainLabels(order, costs, moves, limit, most)
    strategies = list[Strategy]()
    costs_of_starts = [np.zeros((0, costs[0].shape[1]))]
    for options in chain_labels.starts():
        history = chain_labels.labels(options)
        if history:
            last = range(len(history[-1].option))
            strategies += [chain_labels.strategy(history, index) for index in last]
            costs_of_starts.append(history[-1].costs)
    all_costs = np.concatenate(costs_of_starts)
    kept = pareto_front(all_costs)
    return [strategies[index] for index in kept.tolist()], all_costs[kept]


class _ChainLabels:
    """The labels along the chain, for each option of a first choice that comes again.

    Args:
        order, costs, moves, most: see `front`.
        room: the most that may be held.
    """

    def __init__(
        self, order: Sequence[int], costs: Sequence[Numbers], moves: Sequence[Numbers], room: float, most: int = 0
    ) -> None:
        self._order = order
        self._costs = costs
        self._room = room
        self._most = most
        self._steps = [_Step.of(moved) for moved in moves]
        self.evaluated = 0

    def starts(self) -> list[Indices]:
        """The options of the first choice: one at a time where the chain meets it again, else all."""
        order = self._order
        options = np.arange(len(self._costs[order[0]]))
        return np.split(options, len(options)) if order[0] in order[1:] else [options]

    def strategy(self, history: list[Labels], index: int) -> Strategy:
        """The strategy of the last label at an index: the options of this label and its parents back to the first."""
        option_of: dict[int, int] = {}
        for labels, choice in zip(reversed(history), reversed(self._order), strict=True):
            option_of[choice] = int(labels.option[index])
            index = int(labels.parent[index])
        return tuple(option_of[choice] for choice in range(len(self._costs)))

    def labels(self, options: Indices, below: float = inf) -> list[Labels]:
        """The labels of each choice along the chain; an empty list where no strategy fits into the memory.

        Args:
            options: those of the first choice to begin with.
            below: the best time so far. A label that takes as long is dropped, since its time can only grow.
        """
        first = self._order[0]
        start = Labels(options, self._costs[first][options], np.zeros(len(options), np.int64))
        history = [self._within_limit(start, below)]
        for step, choice in zip(self._steps, self._order[1:], strict=True):
            if not len(history[-1].option):
                break
            labels = step.fronts(history[-1], self._most)
            closing = choice == first
            following = self._close(labels, step, int(options[0])) if closing else self._extend(labels, step, choice)
            self.evaluated += len(labels.option) * len(step.options) + len(following.option)
            history.append(self._within_limit(following, below))
        return history if len(history[-1].option) else []

    def _extend(self, labels: Labels, step: "_Step", choice: int) -> Labels:
        """The labels of the next choice: for each layout that its options have, then for each option."""
        parts = []
        for column, options in enumerate(step.options):
            moved = step.after_move(labels, column)
            parts += [moved.extend(option, self._costs[choice][option]) for option in options]
        option, costs, parent = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Labels(option, costs, parent)

    def _close(self, labels: Labels, step: "_Step", option: int) -> Labels:
        """Back at the first choice, whose price is counted already."""
        (column,) = (index for index, options in enumerate(step.options) if option in options)
        return step.after_move(labels, column).extend(option, 0.0)

    def _within_limit(self, labels: Labels, below: float) -> Labels:
        return labels.select((labels.costs[:, -1] <= self._room) & (labels.costs[:, 0] < below))


class _Step(NamedTuple):
    """A move between neighbours, options with equal prices together.

    Args:
        matrix: [option before, class of options after, cost].
        options: those of each class after.
        before: class of each option before.
    """

    matrix: Numbers
    options: list[Indices]
    before: Indices

    @classmethod
    def of(cls, prices: Numbers) -> "_Step":
        firsts, classes_after = _classes_of_rows(prices.swapaxes(0, 1))
        matrix = prices[:, firsts]
        _, classes_before = _classes_of_rows(matrix)
        options = [np.flatnonzero(classes_after == number) for number in range(len(firsts))]
        return cls(matrix, options, classes_before)

    def fronts(self, labels: Labels, most: int) -> Labels:
        """The labels of each class before that no other beats; the index of each is its parent's index.

        Args:
            most: about the most labels of a class that stay; 0: all of them. See `thinned_front`.
        """
        classes = self.before[labels.option]
        kept = list[Indices]()
        for number in np.unique(classes):
            members = np.flatnonzero(classes == number)
            kept.append(members[thinned_front(labels.costs[members], most)])
        indices = np.concatenate(kept)
        return labels.select(indices)._replace(parent=indices)

    def after_move(self, labels: Labels, column: int) -> Labels:
        """The front of the labels after the move to a class of options."""
        costs = labels.costs.copy()
        costs[:, : self.matrix.shape[2]] += self.matrix[labels.option, column]
        return labels._replace(costs=costs).select(pareto_front(costs))


def _classes_of_rows(rows: Numbers) -> tuple[list[int], Indices]:
    """The index of the first row of each class of equal rows, and the class of each row."""
    class_of: dict[bytes, int] = {}
    classes = [class_of.setdefault(row.tobytes(), len(class_of)) for row in rows]
    return [classes.index(number) for number in range(len(class_of))], np.array(classes)


def pareto_front(costs: Numbers) -> Indices:
    """The indices of the rows [row, cost] that no other row beats in all costs; of equal rows the first."""
    order = np.lexsort(costs.T[::-1])
    if costs.shape[1] == 2:  # along the first cost the second must fall
        second_costs = costs[order, 1]
        kept = np.ones(len(order), bool)
        kept[1:] = second_costs[1:] < np.minimum.accumulate(second_costs)[:-1]
        return order[kept]
    kept = np.empty_like(costs)
    indices = list[int]()
    for index in order.tolist():
        if not (kept[: len(indices)] <= costs[index]).all(axis=1).any():
            kept[len(indices)] = costs[index]
            indices.append(index)
    return np.array(indices, np.int64)


def thinned_front(costs: Numbers, most: int) -> Indices:
    """The front, thinned until it has few rows: each row left out costs about as much as one that stays.

    Costs are rounded up on a logarithmic grid, which doubles its distance until few rounded rows beat all others.

    Args:
        most: the most rows of the rounded front. The rows with the least of each cost stay besides. 0: the whole front.
    """
    front_indices = pareto_front(costs)
    grid = 1e-3
    indices = front_indices
    while most and len(indices) > most:
        rounded = np.ceil(np.log1p(costs[front_indices] / _scale(costs)) / grid)
        indices = front_indices[pareto_front(rounded)]
        grid *= 2
    if len(indices) == len(front_indices):
        return indices
    return np.union1d(indices, front_indices[costs[front_indices].argmin(axis=0)])


def _scale(costs: Numbers) -> Numbers:
    """A thousandth of the largest of each cost, below which differences do not count."""
    largest: Numbers = costs.max(axis=0)
    return np.where(largest > 0, largest, 1.0) / 1000
