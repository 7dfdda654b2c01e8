"""Dynamic programming along the chain: exact, with any limit of memory.

A label is a beginning of the chain: its time and the bytes it holds. Among labels that end in the same layout only
those stay that no other beats in both (a Pareto front), since whatever follows costs the same for all of them. A choice
that the chain meets again, the layout of the residual stream, is tried option by option.
"""

from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelined.sharding.search.problem import ROUNDING, Found, Numbers, Problem, Strategy

Places = NDArray[np.int64]


class Labels(NamedTuple):
    """Beginnings of the chain, a column each.

    Args:
        option: the last choice's option.
        seconds, held: of the beginning.
        parent: place of the label that it continues, among those of the choice before.
    """

    option: Places
    seconds: Numbers
    held: Numbers
    parent: Places

    def taken(self, which: NDArray[Any]) -> "Labels":
        """Some of the labels, by place or by mask."""
        return Labels(self.option[which], self.seconds[which], self.held[which], self.parent[which])

    def going_on(self, option: int, seconds: float = 0.0, held: float = 0.0) -> "Labels":
        """All of them with one more choice."""
        return Labels(np.full(len(self.option), option), self.seconds + seconds, self.held + held, self.parent)


def search(problem: Problem, limit: float = inf, *, evaluations: int = 0, seed: int = 0) -> Found:
    """The strategy that takes the least time among those that hold at most `limit` bytes.

    Args:
        evaluations, seed: not used; every search takes them.
    Cost: for each choice, labels times the layouts that follow, and a sort of each; labels stay in the hundreds.
    """
    return _Search(problem, limit).best()


class _Search:
    def __init__(self, problem: Problem, limit: float) -> None:
        self._problem = problem
        self._room = (limit - problem.fixed) * ROUNDING
        self._steps = [_Step.of(moved * problem.microbatches) for moved in problem.moves]
        self._best, self._evaluated = Found(None, inf, 0), 0

    def best(self) -> Found:
        walk = self._problem.walk
        if walk[0] not in walk[1:]:
            self._from(np.arange(len(self._problem.choices[walk[0]].options)))
        else:
            for option in range(len(self._problem.choices[walk[0]].options)):
                self._from(np.array([option]))
        return self._best._replace(evaluated=self._evaluated)

    def _from(self, options: Places) -> None:
        """Search with the first choice confined to these options."""
        first = self._problem.walk[0]
        held = self._held(first)[options]
        labels = self._fitting(Labels(options, self._seconds(first)[options], held, np.zeros(len(options), np.int64)))
        history = [labels]
        for step, choice in zip(self._steps, self._problem.walk[1:], strict=True):
            if not len(labels.option):
                return
            labels = (
                self._close(labels, step, int(options[0])) if choice == first else self._extend(labels, step, choice)
            )
            history.append(labels)
        if len(labels.option):
            self._keep(history)

    def _extend(self, labels: Labels, step: "_Step", choice: int) -> Labels:
        """The labels of the next choice: for each layout that its options have, then for each option."""
        seconds, held, parts = self._seconds(choice), self._held(choice), []
        labels = step.fronts(labels)
        for column, options in enumerate(step.options):
            moved = step.reached(labels, column)
            parts += [moved.going_on(option, seconds[option], held[option]) for option in options]
        option, reached, total, parent = (np.concatenate(column) for column in zip(*parts, strict=True))
        found = Labels(option, reached, total, parent)
        self._evaluated += len(labels.option) * len(step.options) + len(found.option)
        return self._fitting(found)

    def _close(self, labels: Labels, step: "_Step", option: int) -> Labels:
        """Back at the first choice, whose price is counted already."""
        (column,) = (place for place, options in enumerate(step.options) if option in options)
        labels = step.fronts(labels)
        self._evaluated += len(labels.option)
        return self._fitting(step.reached(labels, column).going_on(option))

    def _fitting(self, labels: Labels) -> Labels:
        fits = (labels.held <= self._room) & (labels.seconds < self._best.seconds)
        return labels.taken(fits)

    def _keep(self, history: list[Labels]) -> None:
        place = int(np.argmin(history[-1].seconds))
        seconds = float(history[-1].seconds[place])
        picked: dict[int, int] = {}
        for labels, choice in zip(reversed(history), reversed(self._problem.walk), strict=True):
            picked[choice] = int(labels.option[place])
            place = int(labels.parent[place])
        strategy: Strategy = tuple(picked[choice] for choice in range(len(self._problem.choices)))
        self._best = Found(strategy, seconds, 0)

    def _seconds(self, choice: int) -> Numbers:
        each = self._problem.choices[choice]
        return self._problem.microbatches * each.micro + each.step

    def _held(self, choice: int) -> Numbers:
        """Bytes of each option; all equal where any number fits, so that time alone decides."""
        held = self._problem.choices[choice].held
        return held if self._room < inf else np.zeros_like(held)


class _Step(NamedTuple):
    """A move between neighbours, options with equal prices together.

    Args:
        matrix: seconds [option before, class of options after].
        options: those of each class after.
        before: class of each option before.
    """

    matrix: Numbers
    options: list[Places]
    before: Places

    @classmethod
    def of(cls, moved: Numbers) -> "_Step":
        firsts, kinds = _alike(moved.T)
        columns = moved[:, firsts]
        return cls(columns, [np.flatnonzero(kinds == kind) for kind in range(len(firsts))], _alike(columns)[1])

    def fronts(self, labels: Labels) -> Labels:
        """The labels that no other of the same class before beats; each knows its own place as its parent."""
        kinds = self.before[labels.option]
        members = (np.flatnonzero(kinds == kind) for kind in range(int(self.before.max()) + 1))
        kept = [some[_front(labels.seconds[some], labels.held[some])] for some in members if len(some)]
        places = np.concatenate(kept)
        return labels.taken(places)._replace(parent=places)

    def reached(self, labels: Labels, column: int) -> Labels:
        """The front of the labels after the move to a class of options."""
        moved = labels._replace(seconds=labels.seconds + self.matrix[labels.option, column])
        return moved.taken(_front(moved.seconds, moved.held))


def _alike(rows: Numbers) -> tuple[list[int], Places]:
    """The first of each kind of equal rows, and the kind of each row."""
    kinds: dict[bytes, int] = {}
    kind = [kinds.setdefault(row.tobytes(), len(kinds)) for row in rows]
    return [kind.index(each) for each in range(len(kinds))], np.array(kind)


def _front(seconds: Numbers, held: Numbers) -> Places:
    """Places of those that no other beats: of equal ones the first."""
    order = np.lexsort((held, seconds))
    lowest = np.minimum.accumulate(held[order])
    kept = np.ones(len(order), bool)
    kept[1:] = held[order][1:] < lowest[:-1]
    return order[kept]
