"""From the flags of `plan` to what is planned with. The rule: what cannot be read is refused with what can."""

import argparse
from collections.abc import Callable

from collectives import Links
from pipelined._commands._errors import BadInput
from pipelined._commands._pairs import UNITS, pairs, single
from pipelined._commands._simulation_flags import machine_of
from pipelined.launch import Launch
from pipelined.planner import Stated, Subject
from pipelined.planner.limits import share_of_memory
from pipelined.simulation.machine import Machine

SPEED = ("flops", "overhead")


def stated_costs(arguments: argparse.Namespace, subject: Subject) -> Stated:
    """Costs as `--costs` has them."""
    said = single("--costs", pairs("--costs", arguments.costs, SPEED))
    if not 0 < said.get("flops", 0.0) < float("inf"):
        raise BadInput(f"--costs needs a speed (flops={said.get('flops', 0):g}); write it as flops=1e10")
    if not 0 <= said.get("overhead", 0.0) < float("inf"):
        raise BadInput(f"--costs overhead={said['overhead']:g} is no duration; give seconds from 0 up")
    return Stated(subject.layer_costs, subject.sequence, said["flops"], said.get("overhead", 0.0))


def stated_machine(arguments: argparse.Namespace) -> Machine:
    """Links, nodes and cores as the flags have them; links nobody states cost what `Links` says by itself."""
    arguments.interference = 0.0
    machine = machine_of(arguments)
    return machine if arguments.links else Machine(Links(), machine.far, machine.node, machine.cores)


def limit_of(
    arguments: argparse.Namespace, launch: Launch, ranks: int, share: Callable[[int], float] = share_of_memory
) -> float:
    """Bytes a rank may hold: as given, or its share of this machine's memory.

    Args:
        share: bytes for each of so many ranks on it.
    """
    if arguments.memory_limit is None:
        here = arguments.node or launch.local_size or ranks
        return share(min(here, ranks))
    text = arguments.memory_limit
    unit = text[-1:] if text[-1:] in UNITS else ""
    try:
        limit = float(text.removesuffix(unit)) * UNITS[unit]
    except ValueError as error:
        raise BadInput(f"--memory-limit {text} is no size; write it as 512M or 4G") from error
    if not limit > 0:
        raise BadInput(f"--memory-limit {text} leaves nothing; give more than 0")
    return limit
