"""Examination of all ranks of a job: each rank examines its machine, one rank per node loads the libraries.

Rank 0 gathers the results. A fault of the machine is part of the result; it raises no error.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from collectives.objects import gather_objects
from pipelined.actors.actor import Actor
from pipelined.aio.clock import RealClock
from pipelined.measurement.doctor.libraries import Libraries, load
from pipelined.measurement.doctor.machine import Host, examine_machine
from pipelined.measurement.doctor.speed import Speed, measure
from pipelined.measurement.timed.collective_costs import CollectiveCosts, groups, measure_collectives
from pipelined.process.launch import Launch
from transports import Transport


@dataclass(frozen=True)
class ExaminedNode:
    """One machine of the job.

    Args:
        ranks: the ranks on this machine.
        machine: the machine, as seen by the lowest of these ranks.
        libraries: MPI and torch on this machine.
    """

    ranks: tuple[int, ...]
    machine: Host
    libraries: Libraries


@dataclass(frozen=True)
class Examination:
    """The result of an examination.

    Args:
        launch: the launcher of the ranks.
        nodes: the machines of the job.
        speed: the measured links; None with one rank.
        connection_error: the reason why the ranks could not exchange messages; None if they could.
        collectives: the measured costs of collectives by messages, by group.
    """

    launch: Launch
    nodes: tuple[ExaminedNode, ...]
    speed: Speed | None = None
    connection_error: str | None = None
    collectives: Mapping[str, CollectiveCosts] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON."""
        nodes = [
            {"ranks": list(node.ranks), "machine": node.machine.to_dict(), "libraries": node.libraries.to_dict()}
            for node in self.nodes
        ]
        ranks = sum(len(node.ranks) for node in self.nodes)
        launch = {"by": self.launch.launcher, "transport": self.launch.url, "ranks": ranks}
        return {
            "launch": launch,
            "nodes": nodes,
            "links": self.speed and self.speed.to_dict(),
            "collectives": {name: costs.to_dict() for name, costs in self.collectives.items()},
            "trouble": self.connection_error,
        }


def examine_alone(launch: Launch, connection_error: str | None = None) -> Examination:
    """Examine this machine only."""
    node = ExaminedNode((launch.rank,), examine_machine(os.environ), load(os.environ))
    return Examination(launch, (node,), None, connection_error)


async def examine(transport: Transport, launch: Launch, progress: Callable[[str], None]) -> Examination | None:
    """Examine every rank and the links between them; all ranks call this together.

    Returns: the result on rank 0, None on the others.
    """
    progress("loading MPI and torch on every node")
    is_first = transport.nodes[transport.rank] == transport.rank  # of its node
    libraries = (await asyncio.to_thread(load, os.environ)).to_dict() if is_first else None
    examined = await gather_objects(transport, "doctor", [examine_machine(os.environ).to_dict(), libraries])
    speed = None
    collectives = dict[str, CollectiveCosts]()
    if transport.world_size > 1:
        async with Actor(transport) as actor:
            speed = await measure(actor, RealClock(), progress)
        for name, ranks in groups(transport.nodes).items():
            progress(f"timing collectives {name}")
            if costs := await measure_collectives(transport, RealClock(), ranks):
                collectives[name] = costs
    return Examination(launch, _nodes(transport.nodes, examined), speed, collectives=collectives) if examined else None


def _nodes(nodes: tuple[int, ...], examined: list[Any]) -> tuple[ExaminedNode, ...]:
    """The nodes, from the lowest rank on the node of each rank, and each rank's machine and libraries as JSON."""
    leaders = dict.fromkeys(nodes)
    ranks = {leader: tuple(rank for rank, node in enumerate(nodes) if node == leader) for leader in leaders}
    return tuple(ExaminedNode(ranks[n], Host(**examined[n][0]), Libraries(**examined[n][1])) for n in leaders)
