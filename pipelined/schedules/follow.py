"""Following an order that was worked out for many microbatches with as many as there are.

The rule: what is left out is whole microbatches in all their stages, and that cannot make an order wrong.
"""

from collections import Counter
from collections.abc import Iterable

from pipelined.schedules.worker import Worker

Place = tuple[int, int]
"""(pipe, stage)."""


async def follow(worker: Worker, order: Iterable[tuple[str, Place]]) -> None:
    """Tell a worker each (op, place) of an order, past the last microbatch of a pipe nothing.

    Args:
        order: op is F, B, I or W; each takes the next microbatch of its place.
    """
    verbs = {"F": worker.forward, "B": worker.backward, "I": worker.backward_input, "W": worker.backward_weight}
    told: Counter[tuple[str, Place]] = Counter()
    for op, (pipe, stage) in order:
        told[op, (pipe, stage)] += 1
        if told[op, (pipe, stage)] <= len(worker.layout.microbatches[pipe]):
            await verbs[op](pipe, stage)
