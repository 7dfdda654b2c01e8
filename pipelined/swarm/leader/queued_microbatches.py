"""The microbatches of one step, and of its validation data: what each still needs, and the slots that have it.

Validation data has the indices after the batch. No stage counts it; its reports carry a score.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar

from pipelined.swarm.protocol.work import Score


class QueuedMicrobatch(ABC):
    """One microbatch of a queue.

    Args:
        index: of the microbatch.

    Attributes:
        is_evaluation: whether it is validation data.
        holders: the slots that have it, and when each of them got it, in seconds.
        is_free: whether it stands among the queue's free ones.
    """

    is_evaluation: ClassVar[bool]

    def __init__(self, index: int):
        self.index, self.holders, self.is_free = index, dict[str, float](), True

    @property
    @abstractmethod
    def is_wanted(self) -> bool:
        """Whether anything of it is still to be done."""

    @property
    def stages(self) -> tuple[int, ...]:
        """The stages that must count it; none of validation data."""
        return ()

    @abstractmethod
    def report(self, counted: Mapping[int, str], score: Score | None) -> None:
        """Record the report of a slot: by stage the peer that counted it, and the score of validation data."""


class TrainingMicrobatch(QueuedMicrobatch):
    """A microbatch of the step.

    Args:
        stages: that must count it.
    """

    is_evaluation = False

    def __init__(self, index: int, stages: Iterable[int]):
        super().__init__(index)
        self._missing, self._counted_by = set(stages), dict[int, str]()

    @property
    def is_wanted(self) -> bool:
        return bool(self._missing)

    @property
    def stages(self) -> tuple[int, ...]:
        return tuple(sorted(self._missing))

    def report(self, counted: Mapping[int, str], score: Score | None) -> None:
        self._missing -= counted.keys()
        self._counted_by.update(counted)

    def forget(self, peer: str, successor: str) -> None:
        """Remove a peer: the stages that it counted this for lack it again, unless a successor took over its sum."""
        for stage in [stage for stage, counted_by in self._counted_by.items() if counted_by == peer]:
            if successor:
                self._counted_by[stage] = successor
            else:
                self.reconcile(stage, lacks=True)

    def reconcile(self, stage: int, lacks: bool) -> None:
        """Record whether a stage lacks this, as its peers say."""
        if lacks:
            self._missing.add(stage)
            self._counted_by.pop(stage, None)
        else:
            self._missing.discard(stage)


class EvaluationMicrobatch(QueuedMicrobatch):
    """A microbatch of validation data.

    Attributes:
        score: None before it is reported; a score without samples does not count.
    """

    is_evaluation = True

    def __init__(self, index: int):
        super().__init__(index)
        self.score: Score | None = None

    @property
    def is_wanted(self) -> bool:
        return self.score is None

    def report(self, counted: Mapping[int, str], score: Score | None) -> None:
        if score is not None and score.samples > 0:
            self.score = score
