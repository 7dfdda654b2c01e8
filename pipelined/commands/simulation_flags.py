"""From the flags of `simulate` to what is simulated. An unreadable value is refused; the message names the readable."""

import argparse
from typing import Any

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
    """The arrangement. The microbatch's size does not matter here; it is 2 so that it can be halved."""
    shape = shape_of(arguments, find(arguments.name))
    return Plan(arguments.name, shape.depth, arguments.width, 2, shape.microbatches, shape.knobs)


def workload_of(arguments: argparse.Namespace, depth: int) -> Workload:
    """The cost of every stage, and parameters of its own."""
    seconds = spread("--costs", pairs("--costs", arguments.costs, COSTS), depth)
    sizes = spread("--memory", pairs("--memory", arguments.memory, SIZES, sizes=True), depth)
    stages, parameters = [], []
    for stage in range(depth):
        weights, rest = divmod(int(sizes[stage].pop("parameters", 0)), FLOAT)
        if rest:
            fact = f"--memory parameters={FLOAT * weights + rest} are no whole parameters (bytes of each: {FLOAT})"
            raise UsageError(f"{fact}; give a multiple of {FLOAT}")
        fields: dict[str, Any] = {name.replace("-", "_"): number for name, number in seconds[stage].items()}
        fields |= {f"{name}_bytes": int(size) for name, size in sizes[stage].items()}
        stages.append(StageCosts(**fields))
        parameters += [Parameters((stage,), weights)] if weights else []
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
    alpha, beta, gamma = (costs.get(name, 0.0) for name in LINK)
    return Links(alpha, beta, gamma)
