"""The pass that puts gradient sums into a program: each worker sums the gradient of every stage that it holds.

A sum that starts early overlaps the computation. By the rule `gap` a stage's sum starts right after its last backward
if and only if the worker has an idle gap after it; without a gap the sum would only slow the computation down.
Source: Chimera (2021), section 3.2.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from pipelined.programs.costs import DEFAULT_COSTS, Costs
from pipelined.programs.instructions import Instruction, Program, gradient_sum
from pipelined.programs.pricing.price import price
from pipelined.programs.pricing.timeline import Timed

SUM_STARTS = ("eager", "gap", "after")
"""When a stage's gradient sum starts: after its last backward; there only if an idle gap follows; after the flush."""
MIN_GAP_SHARE = 0.1
"""The shortest gap that counts, in mean computations of its worker; less is within the error of measured costs."""


def with_sums(program: Program, sums_start: str = "gap", costs: Costs = DEFAULT_COSTS) -> Program:
    """The program with a gradient sum for each stage of each worker; sums that it already has stay where they are.

    A sum stands right after its stage's last backward, or at the end of the worker's program. A stage without a
    microbatch on a worker has no last backward there, so its sum stands at the end. Without a flush a program has no
    sums of its own, because each update sums its gradients.

    Args:
        sums_start: one of `SUM_STARTS`. For two pipes of Chimera with B > F and free messages `gap` starts the sums of
            the stages above D/2 early.
        costs: the costs that determine the gaps.
    Cost: one pass over the instructions; `gap` also prices the program.
    """
    stage_map = program.stage_map
    if not stage_map.updates.flushes:
        return program
    stages_held = [stage_map.stages_of(worker) for worker in range(stage_map.workers)]
    early_stages: Sequence[Collection[int]] = stages_held if sums_start == "eager" else [()] * stage_map.workers
    if sums_start == "gap":
        early_stages = [_stages_before_last_gap(worker) for worker in price(program, costs).workers]
    workers = map(_add_sums, program.workers, stages_held, early_stages)
    return replace(program, workers=tuple(map(tuple, workers)))


def last_gradients(instructions: Sequence[Instruction]) -> dict[int, int]:
    """The position of a worker's last backward of each stage, whole or weight half."""
    return {i.stage: position for position, i in enumerate(instructions) if i.op in "BW"}


def _add_sums(row: Sequence[Instruction], stages: Iterable[int], early_stages: Iterable[int]) -> Iterator[Instruction]:
    """A worker's instructions with a gradient sum for each stage that has none.

    Args:
        stages: the worker's stages.
        early_stages: stages with the sum right after the last backward; the other sums come at the end.
    """
    missing_stages = set(stages) - {i.stage for i in row if not i.computes}
    last_positions = last_gradients(row)
    stage_at = {last_positions[stage]: stage for stage in missing_stages.intersection(early_stages, last_positions)}
    for position, instruction in enumerate(row):
        yield instruction
        if position in stage_at:
            yield gradient_sum(stage_at[position])
    yield from map(gradient_sum, sorted(missing_stages.difference(stage_at.values())))


def _stages_before_last_gap(worker: Sequence[Timed]) -> set[int]:
    """The stages with no computation on this worker after its last gap."""
    computations = [timed for timed in worker if timed.instruction.computes]
    min_gap = MIN_GAP_SHARE * sum(timed.end - timed.start for timed in computations) / max(1, len(computations))
    gaps = [index for index, (left, right) in enumerate(pairwise(computations), 1) if right.start - left.end > min_gap]
    if not gaps:
        return set()
    return {t.instruction.stage for t in computations} - {t.instruction.stage for t in computations[gaps[-1] :]}
