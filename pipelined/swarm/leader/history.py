"""What a leader remembers of members by name: with which others each failed, and how often in a row it was evicted.

A failed pair does not say which of the two is at fault. A member that failed with several partners is the likelier one,
also where it failed with one at a time. The memory belongs to one process; how often a name was evicted also stands in
the directory (`Evicted`), so that another leader goes on from there.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pipelined.aio.backoff import MOST_S

FORGIVEN_STEPS = 32
"""Steps that a member sums with others of its stage, without a failure, until its former failures are forgotten."""
MOST_NAMES = 4096
"""Names that are remembered; beyond them the oldest are forgotten."""
MOST_DOUBLINGS = 32


@dataclass
class _Record:
    """Of one name: partners that it failed with, evictions in a row, and steps summed since the last of either."""

    partners: set[str] = field(default_factory=set)
    evictions: int = 0
    good: int = 0


class History:
    """The failures and evictions that one process has seen, by name."""

    def __init__(self) -> None:
        self._records = dict[str, _Record]()

    def failed(self, groups: Iterable[Iterable[str]]) -> None:
        """Take down members that failed with one another; a group of one failed by itself."""
        for group in map(frozenset, groups):
            for name in group:
                record = self._of(name)
                record.partners |= group - {name}
                record.good = 0

    def summed(self, members: Sequence[Sequence[str]]) -> None:
        """A step was taken by these, by stage. A member that is alone at its stage summed with no other."""
        for name in (name for names in members if len(names) > 1 for name in names):
            if name in self._records:
                self._records[name].good += 1
                if self._records[name].good >= FORGIVEN_STEPS:
                    del self._records[name]

    @property
    def partners(self) -> Mapping[str, int]:
        """By name, with how many others it failed; names that are missing failed with none."""
        return {name: len(record.partners) for name, record in self._records.items()}

    def evict(self, name: str, known: int, lease_s: float) -> tuple[int, float]:
        """A member is to be evicted. Returns how often in a row that makes, and for how many seconds it stays away.

        The first pause is one lease, and each later one twice as long, up to 300 s or a lease.

        Args:
            known: evictions in a row, as the directory had them of this name.
        """
        record = self._of(name)
        record.evictions, record.good = max(record.evictions, known) + 1, 0
        pause = lease_s * 2 ** min(record.evictions - 1, MOST_DOUBLINGS)
        return record.evictions, min(pause, max(MOST_S, lease_s))

    def evictions(self, name: str) -> int:
        """How often in a row a member was evicted."""
        return self._records[name].evictions if name in self._records else 0

    def remembers(self, name: str) -> bool:
        """Whether anything of a name has not been forgotten."""
        return name in self._records

    def _of(self, name: str) -> _Record:
        record = self._records.setdefault(name, _Record())
        if len(self._records) > MOST_NAMES:
            del self._records[next(each for each in self._records if each != name)]
        return record
