"""The record `losses`: how often each name left its cluster; the least reliable places get a backup first."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from pipelined.membership.record import Record
from pipelined.ravnest.planning.places import Holder, are_steps

MAX_NAMES = 400
"""Of names of up to 512 bytes: the record stays below 256 KiB, the largest value of a directory."""


@dataclass(frozen=True, slots=True)
class LossCounts(Record):
    """How often nodes were seen to leave their clusters before these were done.

    Args:
        names: by name, how often, and the incarnation that left last.
    """

    names: dict[str, list[int]] = field(default_factory=dict, metadata={"kind": dict})

    def __post_init__(self) -> None:
        for name, counts in self.names.items():
            if type(name) is not str or type(counts) is not list or len(counts) != 2 or not are_steps(counts):
                raise ValueError(f"LossCounts.names: no name with two counts (got: {name!r:.80}, {counts!r:.80})")

    def of(self, name: str) -> int:
        """How often this name left."""
        return self.names.get(name, [0, 0])[0]

    def counted(self, gone: Iterable[Holder]) -> "LossCounts":
        """The same with these holders, each incarnation once; of too many names those that left last are kept."""
        found = dict(self.names)
        for name, _, incarnation in gone:
            times, last = found.get(name, [0, 0])
            if incarnation > last:
                found[name] = [times + 1, incarnation]
        kept = sorted(found, key=lambda name: found[name][1])[-MAX_NAMES:]
        return LossCounts({name: found[name] for name in sorted(kept)})
