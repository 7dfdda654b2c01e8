"""One microbatch of a step, or of its validation data: what it still needs, and the slots that have it.

Validation data has the indices after the batch. No stage counts it; its reports carry a score.
"""

from collections.abc import Iterable, Mapping

from pipelined.swarm.protocol.work import Score


class QueuedMicrobatch:
    """One microbatch of a queue.

    Args:
        stages: that must count it; None: it is validation data.

    Attributes:
        is_evaluation: whether it is validation data.
        holders: the slots that have it, and when each of them got it, in seconds.
        is_free: whether it stands among the queue's free ones.
        score: of validation data; None before it is reported. A score without samples does not count.
    """

    def __init__(self, index: int, stages: Iterable[int] | None):
        self.index = index
        self.is_evaluation = stages is None
        self.holders = dict[str, float]()
        self.is_free = True
        self.score: Score | None = None
        self._missing = set(stages or ())
        self._counted_by = dict[int, str]()

    @property
    def is_unfinished(self) -> bool:
        """Whether anything of it is still to be done."""
        return self.score is None if self.is_evaluation else bool(self._missing)

    @property
    def stages(self) -> tuple[int, ...]:
        """The stages that must still count it."""
        return tuple(sorted(self._missing))

    def report(self, counted: Mapping[int, str], score: Score | None) -> None:
        """Record the report of a slot: by stage the peer that counted it, or the score of validation data."""
        if not self.is_evaluation:
            self._missing -= counted.keys()
            self._counted_by.update(counted)
        elif score is not None and score.samples > 0:
            self.score = score

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
