"""A table without a flush: its rows are a stretch, which is walked again from its beginning where more is asked for.

The rule: what is left out is whole microbatches, the last ones, in all their stages; that cannot make an order wrong.
"""

import math
from collections.abc import Sequence
from itertools import count

from pipelined.schedules.worker import ScheduleError, Updates, Worker

Cell = tuple[str, int, int, int]
"""(op, pipe, stage, microbatch)."""


def check_stretch(
    name: str, rows: Sequence[Sequence[Cell]], entering: Sequence[Sequence[int]], updates: Updates
) -> None:
    """Refuse a table whose rows cannot follow on themselves.

    Args:
        name: of the table.
        entering: the microbatches of each pipe.
    Raises:
        ScheduleError: it has several pipes, its microbatches are not whole updates numbered from 0, or a row takes
            their forwards out of their order.
    """
    if len(entering) != 1:
        fact = f"{name} has updates on the way and {len(entering)} pipes"
        raise ScheduleError(f"{fact}; use one, or leave out its first row")
    microbatches = len(entering[0])
    if list(entering[0]) != list(range(microbatches)) or microbatches % updates.every:
        fact = (
            f"{name} is not of whole updates (microbatches: {microbatches}, the last: {entering[0][-1]}, an update's: "
        )
        raise ScheduleError(f"{fact}{updates.every}); number them from 0 without a gap, up to a multiple of that")
    for worker, row in enumerate(rows):
        forwards = [microbatch for op, _, _, microbatch in row if op == "F"]
        if forwards != sorted(forwards):
            fact = f"{name}: the forwards of worker {worker} are not in the order of their microbatches"
            raise ScheduleError(f"{fact}; without a flush they enter one after another")


async def follow_stretch(worker: Worker, row: Sequence[Cell], microbatches: int) -> None:
    """Walk a row, and again from its beginning, for as long as further microbatches enter.

    Args:
        microbatches: how many the row has.
    """
    verbs = {"F": worker.forward, "B": worker.backward, "I": worker.backward_input, "W": worker.backward_weight}
    end = math.inf
    for first in count(0, microbatches):
        for op, pipe, stage, number in row:
            microbatch = first + number
            if op == "F" and microbatch < end and not await worker.enters(pipe):
                end = microbatch
            if microbatch < end:
                await verbs[op](pipe, stage, microbatch)
        if end < math.inf:
            return
