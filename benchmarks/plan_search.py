"""What the planner's search costs where teams are searched as well: `python -m benchmarks.plan_search`.

Searches schedule, sizes, teams and their layouts for GPT-2 on ranks with stated costs, as `python -m pipelined plan
--tensor auto --costs ...` does, within several memory limits. One process; needs neither ranks nor torch. Peak memory
is of the process, so that of a later limit is that of the dearest so far. With `--measured` it measures the stages on
this machine for each limit, as the command does without `--costs`; that needs torch.
"""

import asyncio
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tyro

from apps.gpt2.config import GPT2Flags
from apps.gpt2.planning.model_to_plan import GPT2ToPlan, planned_model_of
from benchmarks.harness.results import Reported, tell
from collectives import Links
from pipelined.planner import SearchRequest, StatedCosts, search
from pipelined.planner.candidates import AUTO
from pipelined.planner.memory_limit import sizes_that_fit
from pipelined.planner.model_costs import ModelCosts
from pipelined.process.launch import ALONE
from pipelined.process.reporting.progress import say_nothing
from pipelined.simulation import Machine
from transports.local import world

FLOPS, OVERHEAD = 5e13, 5e-5
LINKS = Links(1e-5, 5e-12, 1e-12)
GIB = 2**30


@dataclass(frozen=True)
class Options(Reported):
    """Time the search."""

    preset: str = "gpt2-xl"
    """Model, as of apps.gpt2."""
    ranks: int = 64
    """Ranks that are planned for."""
    limits: tuple[float, ...] = (0.5, 16.0, 1024.0)
    """GiB that a rank may hold."""
    measured: bool = False
    """Measure the stages on this machine; links are then those that the planner takes where it has one rank."""


def searched(preset: str, ranks: int, limit: float, measured: bool = False) -> dict[str, Any]:
    """The search within one memory limit: what it costs, and what it finds."""
    model = planned_model_of(GPT2Flags(preset=preset, tensor=AUTO))
    costs: ModelCosts = StatedCosts(model.layer_costs, model.sequence, FLOPS, OVERHEAD)
    started, machine = time.process_time(), Machine(LINKS)
    if measured:
        costs, machine = asyncio.run(measured_costs(model, ranks, limit))
    searching, measuring_mib = time.process_time(), peak_mib()
    found = search(SearchRequest(model, costs, machine, ranks, limit * GIB))
    took, chosen = time.process_time() - searching, found.chosen
    return {
        "limit_gib": limit,
        "measuring_cpu_s": searching - started,
        "measuring_peak_mib": measuring_mib,
        "cpu_s": took,
        "peak_mib": peak_mib(),
        "tolerance": found.tolerance,
        "considered": found.considered,
        "too_big": found.too_big,
        "simulated": found.simulated,
        "step_s": chosen.step_s,
        "memory_gib": chosen.memory / GIB,
        "plan": {**chosen.candidate.plan.to_dict(), "costs": None, "recompute": chosen.candidate.recompute},
    }


def peak_mib() -> float:
    """The most memory of this process so far; of Linux VmHWM."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


async def measured_costs(model: GPT2ToPlan, ranks: int, limit: float) -> tuple[ModelCosts, Machine]:
    """What one rank measures of all that may fit, as the planner does for so many ranks."""
    from pipelined.measurement.measure import measure  # needs torch

    sizes = sizes_that_fit(model, ranks, limit * GIB)
    transport, stated = world(1)[0], Machine(Links())
    found = await measure(transport, model, ALONE, sizes=sizes, machine=stated, ranks=ranks, progress=say_nothing)
    if found is None:
        raise RuntimeError("rank 0 measured nothing")
    return found.costs, found.machine


def as_table(rows: Sequence[dict[str, Any]]) -> str:
    """The figures for people."""
    sizes = f"{'GiB':>8} {'measuring':>9} {'CPU s':>7} {'MiB':>6} {'candidates':>11}"
    lines = [f"{sizes} {'too big':>9} {'simulated':>9}  chosen"]
    for row in rows:
        spent = f"{row['measuring_cpu_s']:>9.1f} {row['cpu_s']:>7.1f}"
        sizes = f"{row['limit_gib']:>8.6g} {spent} {row['peak_mib']:>6.0f} {row['considered']:>11,}"
        plan = row["plan"]
        shape = f"D={plan['depth']} W={plan['width']} B={plan['microbatch']} N={plan['microbatches']}"
        team = f" T={plan['tensor']}" if "tensor" in plan else ""
        chosen = f"{plan['schedule']} {shape}{team}: {1e3 * row['step_s']:.1f} ms, {row['memory_gib']:.2f} GiB"
        lines.append(f"{sizes} {row['too_big']:>9,} {row['simulated']:>9,}  {chosen}")
    return "\n".join(lines)


def main() -> int:
    """Run what the flags ask for."""
    options = tyro.cli(Options, prog="python -m benchmarks.plan_search")
    rows = [searched(options.preset, options.ranks, limit, options.measured) for limit in options.limits]
    tell(options, rows, lambda: as_table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
