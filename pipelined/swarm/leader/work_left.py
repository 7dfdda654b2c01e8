"""What is still to be done of a step's microbatches and of its validation data, each by its own indices.

Validation data has the indices after the batch. No stage counts it; its reports carry a score.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from pipelined.swarm.protocol.work import Score


class TrainingWork:
    """The microbatches of a step, with the stages that have not counted them.

    Args:
        batch: microbatches of the step.
        stages: of the model.
        over: whether the run is over, so that no stage is to count anything.

    Attributes:
        indices: of the microbatches.
        free: those that no slot has, in the order in which they are assigned.
        left: microbatches that a stage lacks.
    """

    held_out = False

    def __init__(self, batch: int, stages: int, over: bool):
        self.indices, self.left = range(batch), 0 if over else batch
        self.free = deque(self.indices)
        self._missing = [set(range(0 if over else stages)) for _ in self.indices]
        self._counted_by = [dict[int, str]() for _ in range(stages)]

    def wants(self, index: int) -> bool:
        """Whether a stage lacks this microbatch."""
        return bool(self._missing[index])

    def stages(self, index: int) -> tuple[int, ...]:
        """The stages that lack this microbatch."""
        return tuple(sorted(self._missing[index]))

    def have(self, stage: int, index: int, peer: str) -> None:
        """Record that a stage has counted a microbatch, at this peer if one is named."""
        self.left -= self._missing[index] == {stage}
        self._missing[index].discard(stage)
        if peer:
            self._counted_by[stage][index] = peer

    def want(self, stage: int, index: int) -> None:
        """Record that a stage lacks a microbatch."""
        self._counted_by[stage].pop(index, None)
        self.left += not self._missing[index]
        self._missing[index].add(stage)

    def forget(self, peer: str, successor: str) -> Iterator[int]:
        """Yield the microbatches that stages lack without this peer; with a successor, it has counted them instead."""
        for stage, counted_by in enumerate(self._counted_by):
            for index in [index for index, holder in counted_by.items() if holder == peer]:
                if successor:
                    counted_by[index] = successor
                else:
                    self.want(stage, index)
                    yield index

    def reconcile(self, missing: Sequence[Iterable[int] | None]) -> Iterator[int]:
        """Record exactly what each stage lacks, and yield that; None: unknown, so nothing changes."""
        for stage, indices in [(at, each) for at, each in enumerate(missing) if each is not None]:
            lacking = set(indices)
            for index in self.indices:
                if index in lacking:
                    self.want(stage, index)
                    yield index
                else:
                    self.have(stage, index, "")


class EvaluationWork:
    """Microbatches of validation data with their scores.

    Args:
        first: index of the first one.

    Attributes:
        free: those that no slot has, in the order in which they are assigned.
        left: microbatches without a score.
    """

    held_out = True

    def __init__(self, first: int):
        self._first, self._scores, self.left = first, list[Score | None](), 0
        self.free = deque[int]()

    def add(self, count: int) -> range:
        """Add microbatches to be scored; returns their indices."""
        first = self._first + len(self._scores)
        self._scores += [None] * count
        self.left += count
        indices = range(first, first + count)
        self.free += indices
        return indices

    def wants(self, index: int) -> bool:
        """Whether this microbatch has no score."""
        return self._scores[index - self._first] is None

    def stages(self, index: int) -> tuple[int, ...]:
        """No stage counts validation data."""
        return ()

    def record(self, index: int, score: Score | None) -> None:
        """Record the score of a microbatch; one without samples is none."""
        if score is not None and score.samples > 0:
            self._scores[index - self._first] = score
            self.left -= 1

    @property
    def loss(self) -> float:
        """Mean over the samples, summed in the order of indices; needs all scores and some data."""
        scores = [score for score in self._scores if score is not None]
        return math.fsum(score.loss for score in scores) / sum(score.samples for score in scores)
