"""The tables of algorithms, one for each collective. An algorithm is one file; its name is the file's name.

The file defines one class: an `Algorithm` of its collective, and `ClosedForms` if they are known (see
`collectives.algorithms.base`). Choices by price compare the algorithms with closed forms.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Generic, TypeVar

from collectives.algorithms.base import (
    Algorithm,
    AllGatherAlgorithm,
    AllReduceAlgorithm,
    AllToAllAlgorithm,
    ClosedForms,
    ReduceScatterAlgorithm,
)
from collectives.cost_model import Links
from collectives.group import Group
from collectives.signature import Signature

A = TypeVar("A", bound=Algorithm)


class AlgorithmTable(Generic[A]):
    """The algorithms of one collective, each imported at its first use.

    Args:
        collective: its name, for errors.
        entries: "module:class" by the name of the algorithm.
    Attributes:
        names: the names of all algorithms, sorted.
    """

    def __init__(self, collective: str, entries: Mapping[str, str]):
        self.entries, self.names = entries, tuple(sorted(entries))
        self._collective = collective
        self._found: dict[str, A] = {}

    def find(self, name: str) -> A:
        """The algorithm of this name.

        Raises:
            ValueError: an unknown algorithm; the known ones are listed.
        """
        found = self._found.get(name)
        if found is None:
            if name not in self.entries:
                known = ", ".join(sorted({"auto", *self.names}))
                raise ValueError(f"unknown {self._collective} algorithm {name!r}; known: {known}")
            module, _, kind = self.entries[name].partition(":")
            found = self._found[name] = getattr(importlib.import_module(module), kind)()
        return found

    def priced(self, name: str, size: int, nbytes: int, links: Links) -> ClosedForms:
        """The closed forms of this algorithm; for `auto` those of the cheapest, if all links are alike."""
        return self.forms(self.cheapest((0,) * size, nbytes, links) if name == "auto" else name)

    def price(self, name: str, nodes: Sequence[int], nbytes: int, links: Links) -> float:
        """Seconds of this algorithm, or for `auto` of the cheapest, between nodes.

        Args:
            nodes: for each rank, the lowest rank on its node.
        """
        return self.forms(self.cheapest(nodes, nbytes, links) if name == "auto" else name).price(nodes, nbytes, links)

    def check(self, name: str) -> None:
        """Raise ValueError unless the name is `auto` or that of an algorithm; the known ones are listed."""
        if name != "auto":
            self.find(name)

    def forms(self, name: str) -> ClosedForms:
        """The closed forms of this algorithm.

        Raises:
            ValueError: an unknown algorithm, or one without closed forms; those with them are listed.
        """
        found = self.find(name)
        if not isinstance(found, ClosedForms):
            raise ValueError(
                f"the {self._collective} {name!r} has no closed form; take {', '.join(self.closed)} or auto"
            )
        return found

    @cached_property
    def closed(self) -> tuple[str, ...]:
        """The names of the algorithms with closed forms, without `auto`, which is one of them."""
        return tuple(name for name in self.names if name != "auto" and isinstance(self.find(name), ClosedForms))

    async def resolve(self, name: str, group: Group, nbytes: int) -> A:
        """The algorithm of this name, inside a call; for `auto` the one that `choose` names.

        Args:
            nbytes: equal on all ranks.
        """
        if name == "auto":
            name = await self.choose(group, nbytes)
            note_choice(group, name)
        return self.find(name)

    async def choose(self, group: Group, nbytes: int) -> str:
        """`shared` where the ranks share memory, else the cheapest; inside a call, equal on all ranks."""
        if group.size > 1 and await group.shared.open() is not None:
            return "shared"
        return self.cheapest(group.nodes, nbytes, group.links)

    def cheapest(self, nodes: Sequence[int], nbytes: int, links: Links) -> str:
        """The algorithm with the lowest price; of equals, the last by name (`ring` before `multi_ring`).

        Args:
            nodes: for each rank, the lowest rank on its node.
        """
        return min(reversed(self.closed), key=lambda name: self.forms(name).price(nodes, nbytes, links))


def note_choice(group: Group, chosen: str) -> None:
    """Name the algorithm that `auto` has chosen in the signature of the running call; the first choice stays."""
    call = group.calls.running
    if not call.signature.chosen:
        call.refine(_with_choice(call.signature, chosen))


@lru_cache(maxsize=1024)
def _with_choice(signature: Signature, chosen: str) -> Signature:
    return replace(signature, chosen=chosen)


ALL_REDUCE = AlgorithmTable[AllReduceAlgorithm](
    "all-reduce",
    {
        "auto": "collectives.algorithms.all_reduce.auto:AutoAllReduce",
        "hierarchical": "collectives.algorithms.all_reduce.hierarchical:HierarchicalAllReduce",
        "multi_ring": "collectives.algorithms.all_reduce.multi_ring:MultiRingAllReduce",
        "native": "collectives.algorithms.all_reduce.native:NativeAllReduce",
        "rabenseifner": "collectives.algorithms.all_reduce.rabenseifner:RabenseifnerAllReduce",
        "recursive_doubling": "collectives.algorithms.all_reduce.recursive_doubling:RecursiveDoublingAllReduce",
        "ring": "collectives.algorithms.all_reduce.ring:RingAllReduce",
        "shared": "collectives.algorithms.all_reduce.shared:SharedAllReduce",
    },
)
ALL_GATHER = AlgorithmTable[AllGatherAlgorithm](
    "all-gather",
    {
        "doubling": "collectives.algorithms.all_gather.doubling:DoublingAllGather",
        "ring": "collectives.algorithms.all_gather.ring:RingAllGather",
        "shared": "collectives.algorithms.all_gather.shared:SharedAllGather",
    },
)
REDUCE_SCATTER = AlgorithmTable[ReduceScatterAlgorithm](
    "reduce-scatter",
    {
        "halving": "collectives.algorithms.reduce_scatter.halving:HalvingReduceScatter",
        "ring": "collectives.algorithms.reduce_scatter.ring:RingReduceScatter",
        "shared": "collectives.algorithms.reduce_scatter.shared:SharedReduceScatter",
    },
)
ALL_TO_ALL = AlgorithmTable[AllToAllAlgorithm](
    "all-to-all",
    {
        "pairwise": "collectives.algorithms.all_to_all.pairwise:PairwiseAllToAll",
        "shared": "collectives.algorithms.all_to_all.shared:SharedAllToAll",
    },
)
TABLES = {
    "all_gather": ALL_GATHER,
    "all_reduce": ALL_REDUCE,
    "all_to_all": ALL_TO_ALL,
    "reduce_scatter": REDUCE_SCATTER,
}
"""The tables by the folder of their algorithms. A new algorithm gets a line in its table."""
