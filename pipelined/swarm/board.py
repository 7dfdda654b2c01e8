"""The work of one step: which microbatches are still to be counted at which stages, and which trainer's slot has which.

The one rule: what is on the board is only what the conductor was told. Peers' own ledgers are the truth, and `settle`
brings them in before anything is summed.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple


class Assignment(NamedTuple):
    """A microbatch for a trainer, and the stages at which it is to be counted."""

    index: int
    stages: tuple[int, ...]


class Board:
    """One step's work.

    Args:
        batch: microbatches of the step.
        stages: of the model.
    """

    def __init__(self, batch: int, stages: int):
        self._missing = [set(range(stages)) for _ in range(batch)]
        self._counted = [dict[int, str]() for _ in range(stages)]
        self._given: dict[int, str] = {}
        self._free = deque(range(batch))

    @property
    def complete(self) -> bool:
        """Every microbatch was counted at every stage, as far as is known."""
        return not any(self._missing)

    @property
    def left(self) -> int:
        """Microbatches that still miss a stage."""
        return sum(map(bool, self._missing))

    def take(self, slot: str) -> Assignment | None:
        """The next microbatch for this slot of a trainer; None while there is none to give."""
        if not self._free:
            return None
        index = self._free.popleft()
        self._given[index] = slot
        return Assignment(index, tuple(sorted(self._missing[index])))

    def done(self, slot: str, index: int, counted: Mapping[int, str]) -> None:
        """A slot is through with one: `counted` says by stage which peer has it. What it lacks is given again."""
        if self._given.get(index) != slot:
            return
        del self._given[index]
        for stage, peer in counted.items():
            self._counted[stage][index] = peer
            self._missing[index].discard(stage)
        self._offer([index])

    def give_back(self, gone: Callable[[str], bool]) -> None:
        """What those slots were at is given again."""
        orphans = [index for index, slot in self._given.items() if gone(slot)]
        for index in orphans:
            del self._given[index]
        self._offer(orphans)

    def forget(self, peer: str, heir: str = "") -> None:
        """This peer is gone: what its sum held has to be counted again, unless another took the sum over."""
        for stage, counted in enumerate(self._counted):
            for index in [index for index, holder in counted.items() if holder == peer]:
                if heir:
                    counted[index] = heir
                else:
                    self._want(stage, index)

    def settle(self, missing: Sequence[Iterable[int]]) -> None:
        """What each stage's ledgers lack, as they say themselves: it overrules what trainers told."""
        for stage, indices in enumerate(missing):
            lacking = set(indices)
            for index, stages in enumerate(self._missing):
                if index in lacking:
                    self._want(stage, index)
                else:
                    stages.discard(stage)

    def _want(self, stage: int, index: int) -> None:
        self._counted[stage].pop(index, None)
        self._missing[index].add(stage)
        self._offer([index])

    def _offer(self, indices: Iterable[int]) -> None:
        for index in indices:
            if self._missing[index] and index not in self._given and index not in self._free:
                self._free.append(index)
