"""Chimera-W: Chimera's order with the backward split; pending weight halves run while a worker waits for a message.

It is dynamic: the order of forwards and input halves is Chimera's, whatever the timing; the oldest pending weight half
runs whenever the message of the next of them has not come (one that is due is given a moment), or a forward would bring
more than D microbatches alive.
That cap cannot block: in Chimera's order fewer than D wait for their input half before a forward, so where D are alive
one has had it, and its weight half is pending. Weight halves run first in, first out, so sums keep their bits.

bubble = (D/2f-1) max(F, I) where weight halves tile the gaps, as with (F, I, Wg) = (1, 1, 1), (2, 2, 1) and (1, 2, 1);
docs/chimera_w.md says where they do not, and how much longer it is. Source: Li and Hoefler, Chimera (2021), for the
order; Qi et al., Zero Bubble Pipeline Parallelism (2024), for the split. The combination is this project's own.
"""

from collections import deque

from pipelined.schedules import chimera
from pipelined.schedules.layout import Shape
from pipelined.schedules.shapes import check_direct
from pipelined.schedules.worker import Worker


def layout(shape: Shape) -> chimera.ChimeraStageMap:
    """As Chimera's. Takes any even depth, its pipes, and any number of microbatches.

    Raises:
        ScheduleError: what Chimera refuses, or a scale: pairs of forwards would keep more than D alive.
    """
    check_direct("chimera_w", shape)
    return chimera.layout(shape)


async def schedule(worker: Worker) -> None:
    """One step of one worker."""
    pending: deque[int] = deque()  # the pipes whose weight halves are to come, oldest first
    alive = 0
    for _, slot, pipe in chimera.slots(worker):
        op = "I" if slot == "B" else "F"
        while pending and await _held_up(worker, op, pipe, alive):
            await worker.backward_weight(pending.popleft())
            alive -= 1
        if op == "F":
            await worker.forward(pipe)
            alive += 1
        else:
            await worker.backward_input(pipe)
            pending.append(pipe)
    for pipe in pending:
        await worker.backward_weight(pipe)


async def _held_up(worker: Worker, op: str, pipe: int, alive: int) -> bool:
    """Whether the next instruction cannot start yet: a forward where D are alive, or one without its message."""
    return (op == "F" and alive == worker.layout.depth) or not await worker.comes(op, pipe)
