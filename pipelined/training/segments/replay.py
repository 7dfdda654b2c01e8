"""Replay: the order in which every rank ran its instructions, read from a trace, so that another run can repeat it.

A dynamic schedule runs weight halves depending on the arrival of messages, so their order differs from run to run.
Without a flush the order of forwards and backwards may differ, too, and with it the weights at which a gradient is
computed. An order that is read is proved before a rank follows it, like any schedule. This module needs no torch.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from pipelined.programs.instructions import OP_NAMES, Instruction, Program
from pipelined.programs.plan import Plan
from pipelined.programs.proof.check import check
from pipelined.schedules import ScheduleError, Worker, find, run_segment
from pipelined.traces.file import Span, TraceError, read
from pipelined.traces.tracer import NOWHERE

MOVING, ALL = "FBI", "FBIW"
"""The ops in which the members of a team always move tensors, and with weights that are sharded as by ZeRO."""
Order = tuple[Instruction, ...]
"""The instructions of one rank in one step; without a flush, in all steps, with microbatches numbered throughout."""

ReplayOrder = dict[int, list[Order]]
"""Orders by step, and in each step by rank; without a flush only the first step has an entry."""


def read_orders(path: Path, plan: Plan, in_order: bool = False) -> ReplayOrder:
    """The orders of a trace that was written under this plan.

    Args:
        in_order: whether weight halves move tensors, so that members of a team must have them in one order, too.
    Raises:
        TraceError: no trace, a trace without steps, or a step with instructions that do not match the plan.
    Cost: 20 µs per event.
    """
    by_step: dict[int, dict[int, list[Instruction]]] = defaultdict(lambda: defaultdict(list))
    spans = list(_instructions(read(path)))
    if not spans:
        raise TraceError(f"{path} holds no step to replay; give a trace of a run that trained")
    steps = {step for _, step, _ in spans}
    for rank, step, instruction in spans:
        first_step = step if plan.flushes else min(steps)
        microbatch = instruction.microbatch + (step - first_step) * plan.microbatches
        by_step[first_step][rank].append(replace(instruction, microbatch=microbatch))
    for first_step, by_rank in sorted(by_step.items()):
        count = 1 if plan.flushes else len(steps)
        _prove(path, plan, first_step, count, by_rank, moving=ALL if in_order else MOVING)
    return {step: [tuple(by_rank[rank]) for rank in range(plan.world_size)] for step, by_rank in by_step.items()}


def check_steps(orders: ReplayOrder, plan: Plan, steps: range) -> None:
    """Refuse an order of a run without a flush that lacks steps to be trained.

    With a flush steps are independent, and a missing step follows the order of another one.

    Raises:
        TraceError: a step is missing.
    """
    if plan.flushes or not steps:
        return
    ((first_step, by_rank),) = orders.items()
    in_order = range(first_step, first_step + sum(i.op == "F" for i in by_rank[0]) // plan.microbatches)
    if steps[0] not in in_order or steps[-1] not in in_order:
        fact = f"the order to replay is that of other steps (its own: {first_step} to {in_order[-1]}, to be trained: "
        raise TraceError(f"{fact}{steps[0]} to {steps[-1]}); without a flush steps overlap, so give a trace of all")


def packed(orders: ReplayOrder) -> dict[int, list[list[tuple[str, int, int, int]]]]:
    """The orders as plain numbers, for msgpack."""
    return {step: [[i.key for i in order] for order in by_rank] for step, by_rank in orders.items()}


def of_rank(orders: Mapping[int, Sequence[Sequence[Sequence[Any]]]], rank: int) -> dict[int, Order]:
    """The orders of one rank, by step, from the result of `packed`."""
    return {step: tuple(Instruction(*i) for i in order[rank]) for step, order in orders.items()}


async def follow_order(worker: Worker, order: Iterable[Instruction]) -> None:
    """Run these instructions on a worker one after another, instead of its schedule."""
    for i in order:
        await worker.do(*i.key)


async def follow_steps(worker: Worker, orders: Mapping[int, Order], steps: range, microbatches: int) -> None:
    """Run the instructions of some steps without a flush on a worker, for the steps that are admitted.

    Args:
        microbatches: microbatches per step.
    """
    ((first_step, order),) = orders.items()
    start = (steps.start - first_step) * microbatches
    row = [(i.op, i.pipe, i.stage, i.microbatch - start) for i in order]
    count = len(steps) * microbatches
    await run_segment(worker, [cell for cell in row if 0 <= cell[-1] < count], count)


def _instructions(spans: Iterable[Span]) -> Iterable[tuple[int, int, Instruction]]:
    """(rank, step, instruction) of every forward, backward and half of a backward, in the order they ran."""
    ops = {name: op for op, name in OP_NAMES.items()}
    for span in spans:
        if span.name in ops and NOWHERE not in (span.step, span.pipe, span.stage, span.microbatch):
            yield span.rank, span.step, Instruction(ops[span.name], span.pipe, span.stage, span.microbatch)


def _prove(
    path: Path, plan: Plan, first_step: int, steps: int, by_rank: Mapping[int, Sequence[Instruction]], *, moving: str
) -> None:
    fact = f"step {first_step} of {path} is not one of this plan ({plan.schedule}, depth {plan.depth}, ranks: "
    fact, remedy = f"{fact}{plan.world_size}, there: {len(by_rank)})", "replay it with the flags it was written with"
    if sorted(by_rank) != list(range(plan.world_size)):
        raise TraceError(f"{fact}; {remedy}")
    stage_map = find(plan.schedule).stage_map(replace(plan.shape, steps=steps))
    for group, member in product(range(plan.width), range(plan.tensor)):
        ranks = [plan.rank(group, worker, member) for worker in range(stage_map.workers)]
        try:
            check(Program(stage_map, tuple(tuple(by_rank[rank]) for rank in ranks)))
        except ScheduleError as error:
            raise TraceError(f"{fact}; {remedy}\n{error}") from error
        for rank in ranks:
            if _filter_ops(moving, by_rank[rank]) != _filter_ops(moving, by_rank[rank - member]):
                raise TraceError(f"{fact}: ranks {rank - member} and {rank} are one worker in two orders; {remedy}")


def _filter_ops(ops: str, order: Sequence[Instruction]) -> list[Instruction]:
    return [instruction for instruction in order if instruction.op in ops]
