"""The bytes a rank holds in a step, worked out: weights, gradients, optimizer state, and activations at their fullest.

The rule: nothing is measured and no tensor is made. What a stage's microbatch keeps is told by the workload; when it is
alive is read off the instructions: from a forward to the last backward, whole or weight half.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pipelined.programs.instructions import Instruction
from pipelined.programs.staleness import most_alive, versions_held
from pipelined.schedules import Updates
from pipelined.simulation.workload import Parameters, StageCosts, Workload

MOMENTS = 2
"""What AdamW keeps of each number of a parameter; beside these it counts its updates, in one number a parameter."""
COUNT_BYTES = 4


@dataclass(frozen=True)
class RankMemory:
    """Bytes one rank holds at its fullest."""

    weights: int
    gradients: int
    optimizer: int
    activations: float

    @property
    def state(self) -> int:
        """What is held all the time."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        """All of it."""
        return self.state + self.activations


def rank_memory(
    workload: Workload,
    held: Iterable[int],
    instructions: Iterable[Instruction],
    parts: int = 1,
    recompute: bool = False,
) -> RankMemory:
    """What a rank holds that holds these stages and does this in a step.

    Args:
        held: its stages; parameters that several of them share are held once.
        parts: pieces each microbatch is cut into, `StageMap.parts`.
    """
    stages = set(held)
    mine = [group for group in workload.parameters if stages.intersection(group.stages)]
    peak = peak_bytes(workload.stages, instructions, recompute) / parts
    return RankMemory(weight_bytes(mine), weight_bytes(mine), optimizer_bytes(mine), peak)


def without_flush(memory: RankMemory, updates: Updates, instructions: Iterable[Instruction]) -> RankMemory:
    """What a rank holds whose schedule has no flush: its weights in versions, and two gradients.

    One gradient is being added up, the other was subtracted last, or waits for that.
    """
    versions = versions_held(updates, most_alive(instructions))
    return replace(memory, weights=versions * memory.weights, gradients=2 * memory.gradients)


def weight_bytes(parameters: Iterable[Parameters]) -> int:
    """Bytes of these parameters, which are those of their gradients too."""
    return sum(group.nbytes for group in parameters)


def optimizer_bytes(parameters: Iterable[Parameters]) -> int:
    """Bytes AdamW keeps of these parameters after its first update."""
    return sum(MOMENTS * group.nbytes + COUNT_BYTES * group.tensors for group in parameters)


def peak_bytes(stages: Sequence[StageCosts], instructions: Iterable[Instruction], recompute: bool = False) -> int:
    """The most bytes of activations alive at once; a recomputed forward is alive beside what is kept of the others."""
    alive = peak = 0
    for instruction in instructions:
        before, during, after = _kept(stages[instruction.stage], instruction.op, recompute)
        peak = max(peak, alive - before + during)
        alive += after - before
    return peak


def _kept(costs: StageCosts, op: str, recompute: bool) -> tuple[int, int, int]:
    """Bytes of a microbatch before, during and after an instruction; what a half leaves may be more than it took."""
    whole = costs.activation_bytes
    kept = costs.boundary_bytes if recompute else whole
    if op == "F":
        return 0, kept, kept
    if op == "B":
        return kept, whole, 0
    return (kept, max(whole, costs.pending), costs.pending) if op == "I" else (costs.pending, costs.pending, 0)
