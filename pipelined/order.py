"""The order in which every rank ran its instructions, read from a trace, so that a run can be made to repeat it.

When the weight halves of a dynamic schedule run depends on when messages come, and so differs from run to run; a trace
says when they did. The one rule: what is read is proved before anybody follows it, like any schedule. No torch.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelined.checker import check
from pipelined.plan import Plan
from pipelined.program import OPS, Instruction, Program
from pipelined.schedules import ScheduleError, Worker
from pipelined.trace import Span, TraceError, read

Order = tuple[Instruction, ...]
"""What one rank did in one step."""

Orders = dict[int, list[Order]]
"""By step, and in it by rank."""


def read_orders(path: Path, plan: Plan) -> Orders:
    """The orders of a trace that was written under this plan.

    Raises:
        TraceError: no trace, or one without steps; or a step that is not what the plan's ranks have to do.
    Cost: 20 µs an event.
    """
    found: dict[int, dict[int, list[Instruction]]] = defaultdict(lambda: defaultdict(list))
    for rank, step, instruction in _instructions(read(path)):
        found[step][rank].append(instruction)
    if not found:
        raise TraceError(f"{path} holds no step to replay; give a trace of a run that trained")
    for step, by_rank in sorted(found.items()):
        _prove(path, plan, step, by_rank)
    return {step: [tuple(by_rank[rank]) for rank in range(plan.world_size)] for step, by_rank in found.items()}


def packed(orders: Orders) -> dict[int, list[list[tuple[str, int, int, int]]]]:
    """The same as plain numbers, as msgpack can carry them."""
    return {
        step: [[(i.op, i.pipe, i.stage, i.microbatch) for i in order] for order in by_rank]
        for step, by_rank in orders.items()
    }


def of_rank(orders: Mapping[int, Sequence[Sequence[Sequence[Any]]]], rank: int) -> dict[int, Order]:
    """What one rank follows, by step, of what `packed` gave."""
    return {step: tuple(Instruction(*i) for i in order[rank]) for step, order in orders.items()}


async def follow_order(worker: Worker, order: Iterable[Instruction]) -> None:
    """Tell a worker its instructions one after another, whatever its schedule would say."""
    for i in order:
        await worker.execute(i.op, i.pipe, i.stage, i.microbatch)


def _instructions(spans: Iterable[Span]) -> Iterable[tuple[int, int, Instruction]]:
    """(rank, step, instruction) of every forward and every backward or half of one, in the order they ran."""
    ops = {name: op for op, name in OPS.items()}
    for span in spans:
        places = span.pipe, span.stage, span.microbatch
        if span.name in ops and span.step is not None and None not in places:
            yield span.rank, span.step, Instruction(ops[span.name], *places)


def _prove(path: Path, plan: Plan, step: int, by_rank: Mapping[int, Sequence[Instruction]]) -> None:
    fact = f"step {step} of {path} is not one of this plan ({plan.schedule}, depth {plan.depth}, ranks: "
    fact, remedy = f"{fact}{plan.world_size}, there: {len(by_rank)})", "replay it with the flags it was written with"
    if sorted(by_rank) != list(range(plan.world_size)):
        raise TraceError(f"{fact}; {remedy}")
    for group in range(plan.width):
        ranks = [plan.rank(group, worker) for worker in range(plan.layout.workers)]
        try:
            check(Program(plan.layout, tuple(tuple(by_rank[rank]) for rank in ranks)))
        except ScheduleError as error:
            raise TraceError(f"{fact}; {remedy}\n{error}") from error
