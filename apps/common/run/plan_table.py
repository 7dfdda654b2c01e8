"""The table that --dry-run prints: each worker's stages, their layers and a rank's memory, and what teams move."""

from collections.abc import Sequence

from pipelined.planner.predicted_moves import PredictedMoves
from pipelined.programs.plan import Plan
from pipelined.simulation import Workload
from pipelined.simulation.memory import planned_memory


def plan_table(
    plan: Plan, cut: Sequence[range], sizes: Workload, recompute: bool, moves: Sequence[PredictedMoves] = ()
) -> str:
    """One line a worker, of which every rank takes this memory; and one a stage that a team moves tensors of.

    Args:
        cut: the layers of each stage.
        sizes: of the stages.
        moves: those of teams.
    """
    rows = []
    for worker, memory in enumerate(planned_memory(plan, sizes, recompute)):
        stages = plan.stage_map.stages_of(worker)
        where = ", ".join(f"{stage} (layers {cut[stage].start}-{cut[stage].stop - 1})" for stage in stages)
        state, activations = (f"{nbytes / 2**20:,.1f} MiB" for nbytes in (memory.state, memory.activations))
        rows.append(f"  worker {worker}: stages {where}; {state} of state, up to {activations} of activations")
    return "\n".join([*rows, *_move_lines(moves)])


def _move_lines(moves: Sequence[PredictedMoves]) -> list[str]:
    """What the busiest member sends, where members share no memory; a line a stage."""
    bytes_of = {(move.stage, move.phase): f"{move.nbytes:,}" for move in moves}
    return [
        f"  moves of stage {stage}, bytes of a member: forward {bytes_of[stage, 'forward']} and backward "
        f"{bytes_of[stage, 'backward']} a microbatch, update {bytes_of[stage, 'update']} a step"
        for stage in dict.fromkeys(move.stage for move in moves)
    ]
