"""What a leader remembers of members by name: their failed partners, and how often in a row each was evicted.

A failed pair does not show which of the two is at fault. A member that failed with several partners is more likely at
fault, also where it failed with one at a time. The memory belongs to one process. The directory also stores how often
a name was evicted (`Eviction`), so that another leader continues from there.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pipelined.aio.backoff import MOST_S

FORGIVEN_STEPS = 32
"""Steps that a member must sum with others of its stage, without a failure, before its old failures are forgotten."""
MOST_NAMES = 4096
"""Names that are remembered; beyond this number the oldest are forgotten."""
MOST_DOUBLINGS = 32


@dataclass
class _Record:
    """Of one name: partners that it failed with, evictions in a row, and steps summed since the last of either."""

    partners: set[str] = field(default_factory=set)
    evictions: int = 0
    good: int = 0


class History:
    """The failures and evictions that one process has recorded, by name."""

    def __init__(self) -> None:
        self._records = dict[str, _Record]()

    def failed(self, groups: Iterable[Iterable[str]]) -> None:
        """Record groups of members that failed with one another; a group of one failed by itself."""
        for group in map(frozenset, groups):
            for name in group:
                record = self._of(name)
                record.partners |= group - {name}
                record.good = 0

    def summed(self, members: Sequence[Sequence[str]]) -> None:
        """Record that these members, by stage, committed a step. A member alone at its stage summed with no other."""
        for name in (name for names in members if len(names) > 1 for name in names):
            if name in self._records:
                self._records[name].good += 1
                if self._records[name].good >= FORGIVEN_STEPS:
                    del self._records[name]

    @property
    def partners(self) -> Mapping[str, int]:
        """By name, with how many others the member failed; missing names failed with no other."""
        return {name: len(record.partners) for name, record in self._records.items()}

    def evict(self, name: str, known: int, lease_s: float) -> tuple[int, float]:
        """Record an eviction. Returns how many evictions in a row that makes, and the seconds of the pause.

        The first pause is one lease. Each later pause is twice as long, up to the longer of 300 s and one lease.

        Args:
            known: evictions in a row of this name, as the directory has them.
        """
        record = self._of(name)
        record.evictions, record.good = max(record.evictions, known) + 1, 0
        pause = lease_s * 2 ** min(record.evictions - 1, MOST_DOUBLINGS)
        return record.evictions, min(pause, max(MOST_S, lease_s))

    def evictions(self, name: str) -> int:
        """How often in a row a member was evicted."""
        return self._records[name].evictions if name in self._records else 0

    def remembers(self, name: str) -> bool:
        """Whether this process still has a record of a name."""
        return name in self._records

    def _of(self, name: str) -> _Record:
        record = self._records.setdefault(name, _Record())
        if len(self._records) > MOST_NAMES:
            del self._records[next(each for each in self._records if each != name)]
        return record
