"""What an algorithm is: a class with the coroutine that runs it and, where they are known, its closed forms."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from collectives.arrays import Range, Vector
from collectives.cost_model import Links
from collectives.group import Group
from collectives.group.signature import Signature, refined
from collectives.reduction import Reduction


class Algorithm:
    """One way to run a collective. It has no state: one object serves all groups.

    Attributes:
        preferred: whether `auto` takes it wherever it is available and no times were measured.
    """

    preferred = False

    async def is_available(self, group: Group) -> bool:
        """Whether these ranks can run it for every dtype, inside a call; the same answer on all ranks."""
        return True


class ClosedForms(ABC):
    """What an algorithm takes, for n ranks and an array of m bytes; tests hold it to this exactly."""

    @abstractmethod
    def cost(self, size: int, nbytes: int, alpha: float, beta: float, gamma: float) -> float:
        """Seconds, by the model of `Links`, if all links are alike."""

    @abstractmethod
    def steps(self, size: int) -> int:
        """Messages one after another that the last rank waits for."""

    @abstractmethod
    def bytes_to(self, size: int, rank: int, nbytes: int, itemsize: int = 1) -> dict[int, int]:
        """The exact bytes that one rank sends to each peer; no zeros."""

    def seconds(self, nodes: Sequence[int], nbytes: int, links: Links) -> float:
        """Seconds between nodes; here all links are charged as links between nodes.

        Args:
            nodes: for each rank, the lowest rank on its node.
        """
        worst = links.far if links.far is not None and len(set(nodes)) > 1 else links
        return self.cost(len(nodes), nbytes, worst.alpha, worst.beta, worst.gamma)


class SegmentForms(ClosedForms):
    """Closed forms of an algorithm in which each rank has a segment of the array."""

    @abstractmethod
    def bytes_to(
        self, size: int, rank: int, nbytes: int, itemsize: int = 1, lengths: Sequence[int] | None = None
    ) -> dict[int, int]:
        """As in `ClosedForms`; lengths: the elements of each rank's segment, None: the array is cut evenly."""


class AllReduceAlgorithm(Algorithm, ABC):
    """An algorithm of `all_reduce`."""

    @abstractmethod
    async def run(self, group: Group, vector: Vector, reduction: Reduction) -> None:
        """Reduce the vector in place, inside a call of the group."""


class AllGatherAlgorithm(Algorithm, ABC):
    """An algorithm of `all_gather`."""

    @abstractmethod
    async def run(self, group: Group, vector: Vector, spans: Sequence[Range]) -> None:
        """Fill the segments of all other ranks, inside a call of the group; `spans[r]` is rank r's."""


class ReduceScatterAlgorithm(Algorithm, ABC):
    """An algorithm of `reduce_scatter`."""

    @abstractmethod
    async def run(self, group: Group, vector: Vector, spans: Sequence[Range], reduction: Reduction) -> None:
        """Reduce this rank's segment, inside a call of the group; the other segments may be overwritten."""


def size_signature(group: Group, nbytes: int) -> Signature:
    """The signature of the running call with the bytes of the array between two ranks, which both compare."""
    return refined(group.running.signature, length=nbytes, dtype="bytes")


class AllToAllAlgorithm(Algorithm, ABC):
    """An algorithm of `all_to_all`."""

    @abstractmethod
    async def run(self, group: Group, outgoing: Sequence[memoryview], incoming: Sequence[memoryview]) -> None:
        """Send `outgoing[r]` to each rank r and fill `incoming[r]` from it, inside a call of the group.

        Raises:
            Mismatch: the array of some rank for this one has another size.
        """
