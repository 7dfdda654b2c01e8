"""The bytes that a rank holds in a step, calculated: weights, gradients, optimizer state, and the peak of activations.

No tensor is allocated. The workload gives the bytes that a microbatch keeps in a stage. The instructions give the time
for which it keeps them: from its forward to its last backward, whole or weight half.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipelined.programs.instructions import SUM, Instruction, Program
from pipelined.programs.plan import Plan
from pipelined.programs.proof.check import check
from pipelined.programs.recording import record, record_in_time
from pipelined.programs.staleness import peak_alive, versions_held
from pipelined.schedules import StageMap, find
from pipelined.simulation.workload import Parameters, StageCosts, Workload


@dataclass(frozen=True)
class RankMemory:
    """Bytes that one rank holds at its peak."""

    weights: int
    gradients: int
    optimizer: int
    activations: float

    @property
    def state(self) -> int:
        """Bytes held during the whole step."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        """State and activations together."""
        return self.state + self.activations


def planned_memory(plan: Plan, sizes: Workload, recompute: bool) -> list[RankMemory]:
    """What each worker of a group holds at its fullest."""
    schedule = find(plan.schedule)
    stage_map = plan.stage_map
    program = record_in_time(schedule, stage_map) if plan.flushes else record(schedule, plan.shape)
    check(program)
    return program_memory(sizes, program, recompute)


def program_memory(workload: Workload, program: Program, recompute: bool) -> list[RankMemory]:
    """The memory of each worker of a program in a step."""
    workers = enumerate(program.workers)
    return [rank_memory(workload, program.stage_map, worker, row, recompute) for worker, row in workers]


def rank_memory(
    workload: Workload, stage_map: StageMap, worker: int, instructions: Sequence[Instruction], recompute: bool = False
) -> RankMemory:
    """The memory of a worker of this stage map with these instructions in a step.

    A parameter that several of its stages share is counted once. Without a flush there are several versions of its
    weights, and two gradients: one is being accumulated, the other was used in the last update or waits for its update.
    """
    stages = set(stage_map.stages_of(worker))
    updates = stage_map.updates
    parameters = [bucket for bucket in workload.parameters if stages.intersection(bucket.stages)]
    peak = peak_bytes(workload.stages, instructions, recompute) / stage_map.pieces
    version_bytes = weight_bytes(parameters)
    versions = versions_held(updates, peak_alive(instructions))
    gradient_bytes = sum(bucket.gradient_bytes for bucket in parameters)
    gradients = gradient_bytes if updates.flushes else 2 * gradient_bytes
    frozen_bytes = sum(workload.stages[stage].frozen_bytes for stage in stages)
    return RankMemory(versions * version_bytes + frozen_bytes, gradients, optimizer_bytes(parameters), peak)


def weight_bytes(parameters: Iterable[Parameters]) -> int:
    """Bytes of these parameters; their gradients take the same."""
    return sum(bucket.nbytes for bucket in parameters)


def optimizer_bytes(parameters: Iterable[Parameters]) -> int:
    """Bytes that the optimizer keeps for these parameters after its first update."""
    return sum(bucket.kept_bytes for bucket in parameters)


def peak_bytes(stages: Sequence[StageCosts], instructions: Iterable[Instruction], recompute: bool = False) -> int:
    """The most bytes of activations alive at once, with the activations of a recomputed forward."""
    alive = peak = 0
    for instruction in instructions:
        before, during, after = _bytes_kept(stages[instruction.stage], instruction.op, recompute)
        peak = max(peak, alive - before + during)
        alive += after - before
    return peak


def _bytes_kept(costs: StageCosts, op: str, recompute: bool) -> tuple[int, int, int]:
    """Bytes of a microbatch before, during and after an instruction; an input half may leave more than it had."""
    if op == SUM:
        return 0, 0, 0
    whole = costs.activation_bytes
    kept_bytes = costs.boundary_bytes if recompute else whole
    if op == "F":
        return 0, kept_bytes, kept_bytes
    if op == "B":
        return kept_bytes, whole, 0
    return (kept_bytes, max(whole, costs.pending), costs.pending) if op == "I" else (costs.pending, costs.pending, 0)
