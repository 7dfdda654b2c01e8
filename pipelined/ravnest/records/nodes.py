"""The records of nodes in Ravnest's directory.

nodes/NAME        NodeRecord            a node; expires with its lease
saved/NAME        SavedStages           what a node can read of what was saved; expires with the node's lease
losses            DepartureCounts       how often each name has left its cluster; `train` writes it
waits             WaitingNodes          what the nodes without a cluster wait for; `train` writes it
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from pipelined.membership.record import Record
from pipelined.ravnest.planning.pool import PoolNode
from pipelined.ravnest.records.places import Holder, are_steps

NODES, DEPARTURES, WAITS = "nodes/", "losses", "waits"
UPDATES = "updates"
"""The field, in what a node saves, of the number of updates that a parameter has had; a swarm's peers save none."""
MAX_NAMES = 400
"""Names of up to 512 bytes of which departures are counted: the record stays below 256 KiB, a directory's limit."""
MAX_DELAY_S = 60.0
"""Seconds of a line's delay: longer than any connection waits for a reply."""


@dataclass(frozen=True, slots=True)
class NodeRecord(Record):
    """A node that waits for a cluster, or is in one.

    Args:
        address: of its endpoint.
        incarnation: number of the lease that this record is bound to.
        ram: bytes that it may use for the model.
        bandwidth: bytes a second of its line.
        flops: floating-point operations a second; 0: not known.
        saves: whether it saves its stage.
        delay: seconds that a byte is under way on its line, one way.
        reliability: from 0 to 1, as the node was told; 1 where nothing is known.
        task: revision of `subject` as the node has read it; 0: it has read none.
    """

    name: str
    address: str
    incarnation: int
    ram: int
    bandwidth: float
    flops: float
    saves: bool = field(default=False, metadata={"absent": False})
    delay: float = field(default=0.0, metadata={"absent": 0.0})
    reliability: float = field(default=1.0, metadata={"absent": 1.0})
    task: int = field(default=0, metadata={"absent": 0})

    def __post_init__(self) -> None:
        numbers = (self.ram, self.bandwidth, self.flops, self.delay, self.reliability)
        if not all(math.isfinite(number) for number in numbers) or min(numbers) < 0 or 0 in numbers[:2]:
            raise ValueError(f"NodeRecord: no RAM, line or speed of a node (got: {numbers})")
        if self.delay > MAX_DELAY_S or self.reliability > 1:
            raise ValueError(f"NodeRecord: no delay or reliability (got: {self.delay:g} s, {self.reliability:g})")

    @property
    def holder(self) -> Holder:
        """This incarnation of the node, as a place has it."""
        return Holder(self.name, self.address, self.incarnation)

    @property
    def pool_node(self) -> PoolNode:
        """The node as the plan takes it."""
        return PoolNode(
            self.name, self.ram, self.bandwidth, self.flops or None, reliability=self.reliability, delay=self.delay
        )


@dataclass(frozen=True, slots=True)
class DepartureCounts(Record):
    """How often nodes were seen to leave their clusters before these were done.

    Args:
        names: by name, how often, and the incarnation that left last.
    """

    names: dict[str, list[int]] = field(default_factory=dict, metadata={"kind": dict})

    def __post_init__(self) -> None:
        for name, counts in self.names.items():
            if type(name) is not str or type(counts) is not list or len(counts) != 2 or not are_steps(counts):
                raise ValueError(f"DepartureCounts.names: no name with two counts (got: {name!r:.80}, {counts!r:.80})")

    def count(self, name: str) -> int:
        """How often this name left."""
        return self.names.get(name, [0, 0])[0]

    def with_departed(self, holders: Iterable[Holder]) -> "DepartureCounts":
        """The same with these holders, each incarnation once; too many names: those that left last are kept."""
        counts = dict(self.names)
        for name, _, incarnation in holders:
            times, last_incarnation = counts.get(name, [0, 0])
            if incarnation > last_incarnation:
                counts[name] = [times + 1, incarnation]
        latest = sorted(counts, key=lambda name: counts[name][1])[-MAX_NAMES:]
        return DepartureCounts({name: counts[name] for name in sorted(latest)})


@dataclass(frozen=True, slots=True)
class WaitingNodes(Record):
    """What the nodes without a cluster wait for, in words; "": nothing."""

    fact: str
