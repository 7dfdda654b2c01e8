"""The tables of algorithms, one for each collective. An algorithm is one file; its name is the file's name.

The file defines one class: an `Algorithm` of its collective, and `ClosedForms` if they are known (see
`collectives.algorithms.base`).
"""

import importlib
from collections.abc import Mapping
from functools import cached_property
from typing import Generic, TypeVar

from collectives.algorithms.base import (
    Algorithm,
    AllGatherAlgorithm,
    AllReduceAlgorithm,
    AllToAllAlgorithm,
    ClosedForms,
    ReduceScatterAlgorithm,
)
from collectives.cost_model import Links, MeasuredTimes, ProblemSize
from collectives.group import Group

A = TypeVar("A", bound=Algorithm)

AUTO = "auto"
"""The name that means one of the algorithms of a table: see `AlgorithmTable.choose`."""


class AlgorithmTable(Generic[A]):
    """The algorithms of one collective, each imported at its first use.

    Args:
        collective: its name, for errors.
        entries: "module:class" by the name of the algorithm.
    Attributes:
        names: the names of all algorithms, sorted.
    """

    def __init__(self, collective: str, entries: Mapping[str, str]):
        self.entries = entries
        self.names = tuple(sorted(entries))
        self._collective = collective
        self._algorithms: dict[str, A] = {}

    def find(self, name: str) -> A:
        """The algorithm of this name.

        Raises:
            ValueError: an unknown algorithm; the known ones are listed.
        """
        algorithm = self._algorithms.get(name)
        if algorithm is None:
            if name not in self.entries:
                known_names = ", ".join(sorted((AUTO, *self.names)))
                raise ValueError(f"unknown {self._collective} algorithm {name!r}; known: {known_names}")
            module, _, kind = self.entries[name].partition(":")
            algorithm = self._algorithms[name] = getattr(importlib.import_module(module), kind)()
        return algorithm

    def check(self, name: str) -> None:
        """Raise ValueError unless the name is `auto` or that of an algorithm; the known ones are listed."""
        if name != AUTO:
            self.find(name)

    def forms(self, name: str) -> ClosedForms:
        """The closed forms of this algorithm.

        Raises:
            ValueError: an unknown algorithm, or one without closed forms; those with them are listed.
        """
        algorithm = self.find(name)
        if not isinstance(algorithm, ClosedForms):
            names = ", ".join(self.with_closed_forms)
            raise ValueError(f"the {self._collective} {name!r} has no closed form; take {names} or {AUTO}")
        return algorithm

    @cached_property
    def with_closed_forms(self) -> tuple[str, ...]:
        """The names of the algorithms with closed forms."""
        return tuple(name for name in self.names if isinstance(self.find(name), ClosedForms))

    @cached_property
    def preferred(self) -> tuple[str, ...]:
        """The names of the algorithms that `auto` chooses wherever the ranks can run them."""
        return tuple(name for name in self.names if self.find(name).preferred)

    def closed_forms_for(self, name: str, problem: ProblemSize, links: Links) -> ClosedForms:
        """The closed forms of this algorithm; for `auto` those of the fastest by the model."""
        return self.forms(self.fastest(problem, links) if name == AUTO else name)

    def fastest(self, problem: ProblemSize, links: Links) -> str:
        """The fastest algorithm by the model; of equals, the last by name (`ring` before `multi_ring`)."""
        return min(reversed(self.with_closed_forms), key=lambda name: self.forms(name).seconds(problem, links))

    async def choose(self, group: Group, nbytes: int, measured: MeasuredTimes | None = None) -> str:
        """The name of the algorithm that `auto` means, inside a call.

        The fastest measured; without measured times one that is preferred and that these ranks can run; else the
        fastest by the model. This depends only on what is equal on all ranks, so no message is exchanged.
        """
        if measured is not None:
            return measured.fastest(nbytes)
        for name in self.preferred if group.size > 1 else ():
            if await self.find(name).is_available(group):
                return name
        return self.fastest(ProblemSize(group.nodes, nbytes), group.links)

    async def resolve(self, name: str, group: Group, nbytes: int) -> A:
        """The algorithm of this name, inside a call; for `auto` the one that `choose` names.

        Args:
            nbytes: equal on all ranks.
        """
        return self.find(name) if name != AUTO else self.record_choice(group, await self.choose(group, nbytes))

    def record_choice(self, group: Group, name: str) -> A:
        """The algorithm that `auto` means; the signature of the call names it, unless another was chosen before."""
        call = group.running
        if not call.signature.chosen:  # an algorithm may resolve another
            call.refine(chosen=name)
        return self.find(name)


ALL_REDUCE = AlgorithmTable[AllReduceAlgorithm](
    "all-reduce",
    {
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
