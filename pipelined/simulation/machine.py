"""The machine a step is priced on: what its links cost, how its ranks lie on nodes, and how many cores they share.

The rule: only what a link or a core costs is said here, never what is done with it. A message of m bytes holds its link
for m·beta seconds and arrives alpha after it has left it.
"""

from dataclasses import dataclass, field

from collectives import Links
from pipelined.errors import UsageError

FREE = Links(0.0, 0.0, 0.0)
"""Messages and sums that take no time."""


@dataclass(frozen=True)
class Machine:
    """What ranks run on.

    Args:
        near: links between ranks of one node, in seconds and seconds a byte.
        far: links between nodes; None where they are as the near ones.
        node: ranks a node; 0 puts all on one.
        cores: how many ranks can compute at full speed at once; busy ranks beyond them share. 0: one for each rank.
        interference: share of a rank's computing that is lost while a gradient sum is under way on it, 0 ≤ … < 1.
        sums: links as gradient sums find them, between ranks of one node; None where they are as for messages.
        far_sums: the same between nodes; None where they are as `far`.
    Raises:
        UsageError: a count is negative, or the interference no such share.
    """

    near: Links = field(default=FREE)
    far: Links | None = None
    node: int = 0
    cores: int = 0
    interference: float = 0.0
    sums: Links | None = None
    far_sums: Links | None = None

    def __post_init__(self) -> None:
        for name in ("node", "cores"):
            if getattr(self, name) < 0:
                raise UsageError(f"a machine has no {name}={getattr(self, name)}; give 1 or more, or 0 for no limit")
        if not 0.0 <= self.interference < 1.0:
            raise UsageError(f"interference={self.interference} is no share; give 0 or more, and less than 1")

    def link(self, source: int, target: int) -> Links:
        """What a message from one rank to another costs."""
        return self._far if self.node and source // self.node != target // self.node else self.near

    def links(self, ranks: tuple[int, ...]) -> Links:
        """What a sum over these ranks is priced by: the far links as soon as they lie on more than one node."""
        if self.node and ranks[0] // self.node != ranks[-1] // self.node:
            return self.far_sums or self._far
        return self.sums or self.near

    def shares(self, ranks: int) -> bool:
        """Whether so many ranks have to share its cores."""
        return 0 < self.cores < ranks

    @property
    def _far(self) -> Links:
        return self.near if self.far is None else self.far
