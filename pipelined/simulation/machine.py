"""The machine of a simulated step: the costs of its links, its ranks per node, and the number of cores.

A message of m bytes occupies its link for m·beta seconds and arrives alpha seconds after that.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache

from collectives import Links, ProblemSize
from collectives.algorithms import ALL_REDUCE, algorithm_for
from pipelined.errors import UsageError

FREE = Links(0.0, 0.0, 0.0)
"""Messages and sums that take no time."""


@dataclass(frozen=True)
class Machine:
    """The machine that ranks run on.

    Args:
        near: links between ranks of one node, in seconds and seconds per byte.
        far: links between nodes; None: the same as `near`.
        node: ranks per node; 0 puts all ranks on one node.
        cores: the number of ranks that can compute at full speed at once; more busy ranks share the cores. 0: one core
            per rank.
        interference: share of a rank's computing that is lost while a gradient sum runs on it, 0 ≤ … < 1.
        near_sums: links between ranks of one node as measured for gradient sums; None: the same as for messages.
        far_sums: links between nodes as measured for gradient sums; None: the same as `far`.
    Raises:
        UsageError: a count is negative, or the interference is out of range.
    """

    near: Links = field(default=FREE)
    far: Links | None = None
    node: int = 0
    cores: int = 0
    interference: float = 0.0
    near_sums: Links | None = None
    far_sums: Links | None = None

    def __post_init__(self) -> None:
        for name in ("node", "cores"):
            if getattr(self, name) < 0:
                raise UsageError(f"a machine has no {name}={getattr(self, name)}; give 1 or more, or 0 for no limit")
        if not 0.0 <= self.interference < 1.0:
            raise UsageError(f"interference={self.interference} is no share; give 0 or more, and less than 1")

    def link(self, source: int, target: int) -> Links:
        """The link that a message from one rank to another takes."""
        return self._far if self.node and source // self.node != target // self.node else self.near

    def sum_seconds(self, algorithm: str, ranks: tuple[int, ...], nbytes: int) -> float:
        """The seconds of a gradient sum over these ranks if they do nothing else; `auto` takes the cheapest."""
        first_node = ranks[0] // self.node if self.node and ranks else 0
        nodes = tuple((rank // self.node - first_node) * self.node if self.node else 0 for rank in ranks)
        return _sum_seconds(algorithm, nodes, nbytes, self.sum_links)

    def shares_cores(self, ranks: int) -> bool:
        """Whether this number of ranks has to share the cores."""
        return 0 < self.cores < ranks

    @property
    def sum_links(self) -> Links:
        """The links of collectives, those between nodes as `far`."""
        return replace(self.near_sums or self.near, far=self.far_sums or self._far)

    @property
    def _far(self) -> Links:
        return self.near if self.far is None else self.far


@lru_cache(maxsize=1 << 16)
def _sum_seconds(algorithm: str, nodes: tuple[int, ...], nbytes: int, links: Links) -> float:
    problem = ProblemSize(nodes, nbytes)
    forms = ALL_REDUCE.closed_forms_for(algorithm_for(algorithm, nbytes), problem, links)
    return forms.seconds(problem, links)
