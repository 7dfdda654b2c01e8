"""What the planner's search costs where teams are searched as well: `python -m benchmarks.plan_search`.

Searches schedule, sizes, teams and their layouts for GPT-2 on ranks with stated costs, as `python -m pipelined plan
--tensor auto --costs ...` does, within several memory limits. One process; needs neither ranks nor torch. Peak memory
is of the process, so that of a later limit is that of the dearest so far.
"""

import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tyro

from apps.gpt2.config import GPT2Flags
from apps.gpt2.planned_model import planned_model_of
from benchmarks._results import Reported, tell
from collectives import Links
from pipelined.planner import SearchRequest, Stated, search
from pipelined.planner.candidates import AUTO
from pipelined.simulation.machine import Machine

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


def searched(preset: str, ranks: int, limit: float) -> dict[str, Any]:
    """The search within one memory limit: what it costs, and what it finds."""
    model = planned_model_of(GPT2Flags(preset=preset, tensor=AUTO))
    costs = Stated(model.layer_costs, model.sequence, FLOPS, OVERHEAD)
    started = time.process_time()
    found = search(SearchRequest(model, costs, Machine(LINKS), ranks, limit * GIB))
    took, chosen = time.process_time() - started, found.chosen
    return {
        "limit_gib": limit,
        "cpu_s": took,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
        "considered": found.considered,
        "too_big": found.too_big,
        "simulated": found.simulated,
        "step_s": chosen.step_s,
        "memory_gib": chosen.memory / GIB,
        "plan": {**chosen.candidate.plan.plain(), "costs": None, "recompute": chosen.candidate.recompute},
    }


def as_table(rows: Sequence[dict[str, Any]]) -> str:
    """The figures for people."""
    lines = [f"{'GiB':>8} {'CPU s':>7} {'MiB':>6} {'candidates':>11} {'too big':>9} {'simulated':>9}  chosen"]
    for row in rows:
        sizes = f"{row['limit_gib']:>8.6g} {row['cpu_s']:>7.1f} {row['peak_mib']:>6.0f} {row['considered']:>11,}"
        plan = row["plan"]
        shape = f"D={plan['depth']} W={plan['width']} B={plan['microbatch']} N={plan['microbatches']}"
        team = f" T={plan['tensor']}" if "tensor" in plan else ""
        chosen = f"{plan['schedule']} {shape}{team}: {1e3 * row['step_s']:.1f} ms, {row['memory_gib']:.2f} GiB"
        lines.append(f"{sizes} {row['too_big']:>9,} {row['simulated']:>9,}  {chosen}")
    return "\n".join(lines)


def main() -> int:
    """Run what the flags ask for."""
    options = tyro.cli(Options, prog="python -m benchmarks.plan_search")
    rows = [searched(options.preset, options.ranks, limit) for limit in options.limits]
    tell(options, rows, lambda: as_table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
