"""The flags of `plan` as costs, a machine and limits. The message for an unreadable value names the readable ones."""

import argparse
from collections.abc import Sequence

from collectives import Links
from pipelined.api.laboratory.described import machine_of
from pipelined.commands.flags import machine
from pipelined.commands.pairs import UNITS, pairs, single
from pipelined.errors import UsageError
from pipelined.measurement.codec import CodecCosts, ratio_of
from pipelined.planner import PlannedModel, Stated
from pipelined.planner.decide import TRIES
from pipelined.planner.limits import share_of_memory
from pipelined.process.launch import Launch
from pipelined.simulation.machine import Machine

SPEED = ("flops", "overhead", "coding")


def stated_costs(arguments: argparse.Namespace, model: PlannedModel) -> Stated:
    """Costs as `--costs` has them."""
    said = single("--costs", pairs("--costs", arguments.costs, SPEED))
    if not 0 < said.get("flops", 0.0) < float("inf"):
        raise UsageError(f"--costs needs a speed (flops={said.get('flops', 0):g}); write it as flops=1e10")
    for name in SPEED[1:]:
        if not 0 <= said.get(name, 0.0) < float("inf"):
            raise UsageError(f"--costs {name}={said[name]:g} is no duration; give seconds from 0 up")
    coding = CodecCosts(ratio_of(model.compress), per_byte=said.get("coding", 0.0))
    return Stated(model.layer_costs, model.sequence, said["flops"], said.get("overhead", 0.0), coding)


def stated_machine(arguments: argparse.Namespace) -> Machine:
    """Links, nodes and cores as the flags have them; links that are not stated have the defaults of `Links`."""
    return machine_of(**machine(arguments), unstated=Links())


def tries_of(arguments: argparse.Namespace, launch: Launch, ranks: int) -> int:
    """The number of plans to try with real steps: the flag's, else `TRIES` if that is possible.

    Raises:
        UsageError: it cannot be, or there are fewer than none.
    """
    asked, started = arguments.tries, launch.world_size or 1
    if asked is not None and asked < 0:
        raise UsageError(f"--tries must be at least 0 (it is {asked}); 0 tries none")
    if arguments.costs is not None:
        hindrance = "--costs says what they cost"
    elif ranks != started:
        hindrance = f"other ranks are planned for than were started (planned: {ranks}, started: {started})"
    else:
        return TRIES if asked is None else asked
    if asked:
        raise UsageError(f"--tries {asked} cannot run plans where {hindrance}; leave it out")
    return 0


def limit_of(arguments: argparse.Namespace, launch: Launch, ranks: int, gpus: Sequence[int] = ()) -> float:
    """Bytes a rank may hold: as given, or its share of this machine's memory.

    Args:
        gpus: bytes of each of its GPUs.
    """
    if arguments.memory_limit is None:
        here = arguments.node or launch.ranks_here(ranks)
        return share_of_memory(min(here, ranks), gpus)
    text = arguments.memory_limit
    unit = text[-1:] if text[-1:] in UNITS else ""
    try:
        limit = float(text.removesuffix(unit)) * UNITS[unit]
    except ValueError as error:
        raise UsageError(f"--memory-limit {text} is no size; write it as 512M or 4G") from error
    if not limit > 0:
        raise UsageError(f"--memory-limit {text} leaves nothing; give more than 0")
    return limit
