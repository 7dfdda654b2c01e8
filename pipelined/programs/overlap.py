"""The pass that puts gradient sums into a program: each worker sums the gradient of every stage that it holds.

A sum that starts early overlaps the computation. By the rule `gap` a stage's sum starts right after its last backward
if and only if the worker has an idle gap after it; without a gap the sum would only slow the computation down.
Source: Chimera (2021), section 3.2.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

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
    Cost: one pass over the instructions; for `gap` that of pricing the program, too.
    """
    stage_map = program.stage_map
    if not stage_map.updates.flushes:
        return program
    held = [stage_map.stages_of(worker) for worker in range(stage_map.workers)]
    early: Sequence[Collection[int]] = held if sums_start == "eager" else [()] * stage_map.workers
    if sums_start == "gap":
        early = [_before_last_gap(worker) for worker in price(program, costs).workers]
    placed = map(_place, program.workers, held, early)
    return replace(program, workers=tuple(map(tuple, placed)))


def last_gradients(instructions: Sequence[Instruction]) -> dict[int, int]:
    """The position of a worker's last backward of each stage, whole or weight half."""
    return {i.stage: position for position, i in enumerate(instructions) if i.op in "BW"}


def _place(instructions: Sequence[Instruction], held: Sequence[int], early: Collection[int]) -> Iterator[Instruction]:
    """A worker's instructions with a gradient sum for each stage that has none.

    Args:
        held: the worker's stages.
        early: stages of which the sum follows the last backward at once; the other sums come at the end.
    """
    missing = set(held) - {i.stage for i in instructions if not i.computes}
    last = last_gradients(instructions)
    at_last = {last[stage]: stage for stage in missing.intersection(early, last)}
    for position, instruction in enumerate(instructions):
        yield instruction
        if position in at_last:
            yield gradient_sum(at_last[position])
    yield from map(gradient_sum, sorted(missing.difference(at_last.values())))


def _before_last_gap(worker: Sequence[Timed]) -> set[int]:
    """The stages with no computation on this worker after its last gap."""
    computed = [timed for timed in worker if timed.instruction.computes]
    shortest = MIN_GAP_SHARE * sum(timed.end - timed.start for timed in computed) / max(1, len(computed))
    gaps = [index for index in range(1, len(computed)) if computed[index].start - computed[index - 1].end > shortest]
    if not gaps:
        return set()
    return {t.instruction.stage for t in computed} - {t.instruction.stage for t in computed[gaps[-1] :]}
