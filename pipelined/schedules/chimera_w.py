"""Chimera-W: Chimera's order with the backward split; pending weight halves run while a worker waits for a message.

D = 4, N = 4, F = I = Wg:
  worker 0 (0 3)  |F0|F1|  |F2|I2|F3|I3|I0|W2|I1|W3|W0|W1|
  worker 1 (1 2)     |F0|F2|F1|F3|I2|I0|I3|I1|W2|W0|W3|W1|
  worker 2 (1 2)     |F2|F0|F3|F1|I0|I2|I1|I3|W0|W2|W1|W3|
  worker 3 (0 3)  |F2|F3|  |F0|I0|F1|I1|I2|W0|I3|W1|W2|W3|

The schedule is dynamic. The order of forwards (F) and input halves (I) is Chimera's for every timing. The oldest
pending weight half (W) runs in two cases: the message of the next F or I has not arrived (the worker waits a short time
for a message that is due), or the next forward would make more than D microbatches alive.
This cap cannot deadlock: in Chimera's order fewer than D microbatches wait for their input half before a forward. So if
D are alive, one of them has finished its input half, and its weight half is pending. Weight halves run first in, first
out, so gradient sums do not change by a bit.

bubble = (D/2f-1) max(F, I) where weight halves tile the gaps, as with (F, I, Wg) = (1, 1, 1), (2, 2, 1) and (1, 2, 1);
docs/chimera_w.md says where they do not, and how much longer the bubble is then.
Source: Li and Hoefler, Chimera (2021), for the order; Qi et al., Zero Bubble Pipeline Parallelism (2024), for the
split. The combination is our own.
"""

from collections import deque

from pipelined.schedules import chimera
from pipelined.schedules.parts.knobs import PIPES
from pipelined.schedules.parts.placements import require_direct
from pipelined.schedules.parts.stage_map import Shape
from pipelined.schedules.parts.worker import Worker

KNOBS = (PIPES,)

PATIENCE = 0.25
"""The longest wait for a due message before a weight half begins, as a share of the weight half's seconds.

Where weight halves tile the gaps, a message is due at the very moment at which a worker queries for it. Without the
wait, a message that is late by only its travel time would arrive just after a weight half has begun. The wait is short
and always ends, so a late rank does not block another one.
"""


def stage_map(shape: Shape) -> chimera.ChimeraStageMap:
    """As Chimera's stage map. Takes any even depth, Chimera's numbers of pipes, and any number of microbatches.

    Raises:
        ScheduleError: Chimera refuses the shape, or the scale is not "direct": pairs of forwards would make more than
            D microbatches alive.
    """
    require_direct("chimera_w", shape)
    return chimera.stage_map(shape)


async def schedule(worker: Worker) -> None:
    """Run one step on one worker."""
    pending: deque[int] = deque()  # the pipe of each pending weight half, oldest first
    alive = 0
    for chimera_op, pipe in chimera.order(worker):
        op = "I" if chimera_op == "B" else "F"
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
    """Whether the next F or I cannot start yet: D microbatches are alive before an F, or its message is missing."""
    return (op == "F" and alive == worker.stage_map.depth) or not await worker.wait((op, pipe), patience=PATIENCE)
