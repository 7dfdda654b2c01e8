"""The bytes that a rank holds in a step, calculated: weights, gradients, optimizer state, and the peak of activations.

No tensor is allocated. The workload gives the bytes that a microbatch keeps in a stage. The instructions give the time
for which it keeps them: from its forward to its last backward, whole or weight half.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pipelined.programs.instructions import Instruction
from pipelined.programs.staleness import most_alive, versions_held
from pipelined.schedules import Updates
from pipelined.simulation.workload import Parameters, StageCosts, Workload

MOMENTS = 2
"""Numbers that AdamW keeps per number of a parameter; it also keeps one count of updates per parameter."""
COUNT_BYTES = 4


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


def rank_memory(
    workload: Workload,
    held: Iterable[int],
    instructions: Iterable[Instruction],
    parts: int = 1,
    recompute: bool = False,
) -> RankMemory:
    """The memory of a rank with these stages and these instructions in a step.

    Args:
        held: its stages; a parameter that several of them share is counted once.
        parts: pieces into which each microbatch is cut, `StageMap.parts`.
    """
    stages = set(held)
    mine = [group for group in workload.parameters if stages.intersection(group.stages)]
    peak = peak_bytes(workload.stages, instructions, recompute) / parts
    return RankMemory(weight_bytes(mine), weight_bytes(mine), optimizer_bytes(mine), peak)


def without_flush(memory: RankMemory, updates: Updates, instructions: Iterable[Instruction]) -> RankMemory:
    """The memory of a rank under a schedule without a flush: several versions of its weights, and two gradients.

    One gradient is being accumulated. The other was used in the last update, or waits for its update.
    """
    versions = versions_held(updates, most_alive(instructions))
    return replace(memory, weights=versions * memory.weights, gradients=2 * memory.gradients)


def weight_bytes(parameters: Iterable[Parameters]) -> int:
    """Bytes of these parameters; their gradients take the same."""
    return sum(group.nbytes for group in parameters)


def optimizer_bytes(parameters: Iterable[Parameters]) -> int:
    """Bytes that AdamW keeps for these parameters after its first update."""
    return sum(MOMENTS * group.nbytes + COUNT_BYTES * group.tensors for group in parameters)


def peak_bytes(stages: Sequence[StageCosts], instructions: Iterable[Instruction], recompute: bool = False) -> int:
    """The most bytes of activations alive at once, those of a recomputed forward included."""
    alive = peak = 0
    for instruction in instructions:
        before, during, after = _kept(stages[instruction.stage], instruction.op, recompute)
        peak = max(peak, alive - before + during)
        alive += after - before
    return peak


def _kept(costs: StageCosts, op: str, recompute: bool) -> tuple[int, int, int]:
    """Bytes of a microbatch before, during and after an instruction; an input half may leave more than it had."""
    whole = costs.activation_bytes
    kept = costs.boundary_bytes if recompute else whole
    if op == "F":
        return 0, kept, kept
    if op == "B":
        return kept, whole, 0
    return (kept, max(whole, costs.pending), costs.pending) if op == "I" else (costs.pending, costs.pending, 0)
