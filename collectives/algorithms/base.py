"""The contract of an algorithm: a class with the coroutine that runs it and, where they are known, its closed forms."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from collectives.arrays import Range, Vector
from collectives.cost_model import Links, ProblemSize
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
    """The steps and bytes of an algorithm, for n ranks and an array of m bytes; tests compare what it sends."""

    @abstractmethod
    def seconds(self, problem: ProblemSize, links: Links) -> float:
        """Seconds, by the model of `Links`."""

    def factors(self, problem: ProblemSize) -> tuple[float, float, float]:
        """The factors of alpha, beta and gamma in `seconds`, if all links are alike."""
        alpha, beta, gamma = Links(1.0, 0.0, 0.0), Links(0.0, 1.0, 0.0), Links(0.0, 0.0, 1.0)
        return self.seconds(problem, alpha), self.seconds(problem, beta), self.seconds(problem, gamma)

    @abstractmethod
    def steps(self, problem: ProblemSize) -> int:
        """Messages one after another that the last rank waits for."""

    @abstractmethod
    def bytes_to(self, problem: ProblemSize, rank: int) -> dict[int, int]:
        """The exact bytes that one rank sends to each peer; no zeros."""


class AllReduceAlgorithm(Algorithm, ABC):
    """An algorithm of `all_reduce`."""

    @abstractmethod
    async def run(self, group: Group, vector: Vector, reduction: Reduction) -> None:
        """Reduce the vector in place, inside a call of the group."""


class AllGatherAlgorithm(Algorithm, ABC):
    """An algorithm of `all_gather`."""

    @abstractmethod
    async def run(self, group: Group, vector: Vector, segments: Sequence[Range]) -> None:
        """Fill the segments of all other ranks, inside a call of the group; `segments[r]` is rank r's."""


class ReduceScatterAlgorithm(Algorithm, ABC):
    """An algorithm of `reduce_scatter`."""

    @abstractmethod
    async def run(self, group: Group, vector: Vector, segments: Sequence[Range], reduction: Reduction) -> None:
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
