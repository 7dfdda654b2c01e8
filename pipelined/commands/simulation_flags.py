"""From the flags of `simulate` to what is simulated. The rule: what cannot be read is refused with what can."""

import argparse

from collectives import Links
from pipelined.commands.flags import shape_of
from pipelined.commands.pairs import pairs, single, spread
from pipelined.errors import UsageError
from pipelined.programs.plan import Plan
from pipelined.schedules import find
from pipelined.simulation.machine import FREE, Machine
from pipelined.simulation.workload import Parameters, StageCosts, Workload

FLOAT = 4
"""Bytes of a parameter."""
COSTS = ("forward", "backward", "backward-input", "backward-weight", "update")
SIZES = ("message", "activation", "pending", "boundary", "parameters")
LINK = ("alpha", "beta", "gamma")


def plan_of(arguments: argparse.Namespace) -> Plan:
    """The arrangement; the microbatch's size says nothing here, but it must be whole when it is halved."""
    shape = shape_of(arguments, find(arguments.name))
    asked = (shape.microbatches, shape.pipes, shape.chunks, shape.scale)
    return Plan(arguments.name, shape.depth, arguments.width, 2, *asked)


def workload_of(arguments: argparse.Namespace, depth: int) -> Workload:
    """The cost of every stage, and parameters of its own."""
    seconds = spread("--costs", pairs("--costs", arguments.costs, COSTS), depth)
    sizes = spread("--memory", pairs("--memory", arguments.memory, SIZES, sizes=True), depth)
    stages, parameters = [], []
    for stage in range(depth):
        weights = int(sizes[stage].pop("parameters", 0))
        named = {f"{name}_bytes": int(size) for name, size in sizes[stage].items()}
        stages.append(StageCosts(**{name.replace("-", "_"): s for name, s in seconds[stage].items()}, **named))
        parameters += [Parameters((stage,), weights // FLOAT)] if weights else []
    return Workload(stages, parameters)


def machine_of(arguments: argparse.Namespace) -> Machine:
    """Links, nodes and cores."""
    near = _link("--links", arguments.links) if arguments.links else FREE
    far = _link("--far", arguments.far) if arguments.far else None
    return Machine(near, far, arguments.node, arguments.cores, arguments.interference)


def _link(flag: str, text: str) -> Links:
    costs = single(flag, pairs(flag, text, LINK))
    for name, cost in costs.items():
        if not 0 <= cost < float("inf"):
            raise UsageError(f"{flag} {name}={cost:g} is no cost; give finite seconds from 0 up")
    return Links(**{name: costs.get(name, 0.0) for name in LINK})
