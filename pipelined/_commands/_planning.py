"""From the flags of `plan` to what is planned with. The rule: what cannot be read is refused with what can."""

import argparse
import os
from typing import Any

from collectives import Links
from pipelined._commands._errors import BadInput
from pipelined._commands._pairs import UNITS, pairs, single
from pipelined._commands._simulation_flags import machine_of
from pipelined.launch import Launch
from pipelined.planner import Stated, Subject
from pipelined.planner.bounds import least_bytes
from pipelined.planner.candidates import candidates
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


def limit_of(arguments: argparse.Namespace, launch: Launch, ranks: int) -> float:
    """Bytes a rank may hold: as given, or its share of this machine's memory."""
    if arguments.memory_limit is None:
        here = arguments.node or launch.local_size or ranks
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / max(1, min(here, ranks))
    text = arguments.memory_limit
    unit = text[-1:] if text[-1:] in UNITS else ""
    try:
        limit = float(text.removesuffix(unit)) * UNITS[unit]
    except ValueError as error:
        raise BadInput(f"--memory-limit {text} is no size; write it as 512M or 4G") from error
    if not limit > 0:
        raise BadInput(f"--memory-limit {text} leaves nothing; give more than 0")
    return limit


def sizes_of(subject: Subject, ranks: int, limit: float) -> list[int]:
    """The microbatches worth timing: of every plan that may fit, in sequences as the schedule cuts them."""
    every = candidates(ranks, subject.batch, len(subject.layer_costs), subject.fixed)
    plans: dict[tuple[int, int, int], Any] = {}
    for candidate in every:
        plan = candidate.plan
        plans.setdefault((plan.depth, plan.rows, plan.layout.parts), candidate)
    sizes = {c.plan.rows for c in plans.values() if least_bytes(c, subject.workload(c.plan)) <= limit}
    if not sizes:
        raise BadInput(f"no plan fits the memory (limit: {limit / 2**20:.1f} MiB a rank); raise --memory-limit")
    return sorted(sizes)
