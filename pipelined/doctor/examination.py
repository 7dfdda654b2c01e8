"""Looking at all ranks of a job: each says what it sees, one of each node loads the libraries, rank 0 hears it all.

The rule: whatever is broken here is a finding, not a failure.
"""

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipelined.actors.actor import Actor
from pipelined.actors.agree import gather
from pipelined.aio.clock import RealClock
from pipelined.doctor.libraries import Libraries, load
from pipelined.doctor.machine import Machine, look
from pipelined.doctor.speed import Speed, measure
from pipelined.process.launch import Launch
from transports import Transport


@dataclass(frozen=True)
class Node:
    """One machine of the job.

    Args:
        ranks: that run there.
        machine: as its lowest rank sees it.
        libraries: as they are there.
    """

    ranks: tuple[int, ...]
    machine: Machine
    libraries: Libraries


@dataclass(frozen=True)
class Examination:
    """What was found.

    Args:
        launch: who started the ranks.
        nodes: with the ranks that each holds.
        speed: of the links, where there are any.
        trouble: why the ranks could not talk, where they could not.
    """

    launch: Launch
    nodes: tuple[Node, ...]
    speed: Speed | None = None
    trouble: str | None = None

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        nodes = [
            {"ranks": list(node.ranks), "machine": node.machine.plain(), "libraries": node.libraries.plain()}
            for node in self.nodes
        ]
        launch = {"by": self.launch.by, "transport": self.launch.url, "ranks": sum(len(n.ranks) for n in self.nodes)}
        return {"launch": launch, "nodes": nodes, "links": self.speed and self.speed.plain(), "trouble": self.trouble}


def examine_alone(launch: Launch, trouble: str | None = None) -> Examination:
    """Look at this machine alone."""
    node = Node((launch.rank,), look(os.environ), load(os.environ))
    return Examination(launch, (node,), None, trouble)


async def examine(transport: Transport, launch: Launch, tell: Callable[[str], None]) -> Examination | None:
    """Look at every rank and at the links between them; all ranks call this.

    Returns: on rank 0 what was found, None on the others.
    """
    tell("loading MPI and torch on every node")
    first = transport.nodes[transport.rank] == transport.rank
    libraries = (await asyncio.to_thread(load, os.environ)).plain() if first else None
    seen = await gather(transport, "doctor", [look(os.environ).plain(), libraries])
    speed = None
    if transport.world_size > 1:
        async with Actor(transport) as actor:
            speed = await measure(actor, RealClock(), tell)
    return Examination(launch, _nodes(transport.nodes, seen), speed) if seen else None


def _nodes(nodes: tuple[int, ...], seen: list[Any]) -> tuple[Node, ...]:
    held: dict[int, list[int]] = defaultdict(list)
    for rank, node in enumerate(nodes):
        held[node].append(rank)
    return tuple(Node(tuple(ranks), Machine(**seen[n][0]), Libraries(**seen[n][1])) for n, ranks in held.items())
