"""The table that --dry-run prints: one line a worker of a group, with its stages, their layers and their memory."""

from collections.abc import Sequence

from pipelined.programs.plan import Plan
from pipelined.programs.proof.check import check
from pipelined.programs.record import in_time, record
from pipelined.schedules import find
from pipelined.simulation.memory import RankMemory, rank_memory
from pipelined.simulation.workload import Workload


def plan_table(plan: Plan, cut: Sequence[range], sizes: Workload, recompute: bool) -> str:
    """One line a worker.

    Args:
        cut: the layers of each stage.
        sizes: of the stages.
    """
    rows = []
    for worker, held in enumerate(planned_memory(plan, sizes, recompute)):
        stages = plan.layout.stages_of(worker)
        where = ", ".join(f"{stage} (layers {cut[stage].start}-{cut[stage].stop - 1})" for stage in stages)
        state, kept = (f"{nbytes / 2**20:,.1f} MiB" for nbytes in (held.state, held.activations))
        rows.append(f"  worker {worker}: stages {where}; {state} of state, up to {kept} of activations")
    return "\n".join(rows)


def planned_memory(plan: Plan, sizes: Workload, recompute: bool) -> list[RankMemory]:
    """What each worker of a group holds at its fullest."""
    schedule, layout = find(plan.schedule), plan.layout
    program = in_time(schedule, layout) if plan.flushes else record(schedule, plan.shape)
    check(program)
    return [
        rank_memory(sizes, layout, worker, instructions, recompute)
        for worker, instructions in enumerate(program.workers)
    ]
