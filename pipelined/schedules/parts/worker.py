"""The worker that a schedule's coroutine commands: forward, backward, its two halves, and queries for arrived messages.

A schedule is a module with two functions: `stage_map(shape)`, which refuses an impossible shape or returns its stage
map, and `schedule(worker)`, a coroutine that one worker runs for one step. Each verb takes the next microbatch that
it has not taken of its pipe, or the one named, waits for its message, computes and sends; it never waits for a send.

A *dynamic* schedule also calls `here`, or `wait` with a patience; both return whether the message of an instruction has
arrived. It may decide by that when a weight half runs; the order of F, B and I must not depend on it.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Sequence

from pipelined.schedules.parts.stage_map import ScheduleError, StageMap

SUM = "S"
"""The op of a gradient sum."""
RECEIVING = ("F", "B", "I")
"""The ops that start when a message has arrived."""
EVERY = -1
"""The pipe and the microbatch of a gradient sum, which covers them all."""
WaitChoice = tuple[str, int] | tuple[str, int, int]
"""The next instruction of an op (F, B or I) in a pipe, on the worker's first stage of that pipe or the given one."""
InstructionKey = tuple[str, int, int, int]
"""An instruction: its op, pipe, stage and microbatch."""


class Worker(ABC):
    """One worker as its schedule sees it: the verbs, its index and the stage map.

    Args:
        index: the worker's number in its group, 0 … workers-1.
        stage_map: the stage map of the whole group.
    """

    def __init__(self, index: int, stage_map: StageMap):
        self.index, self.stage_map = index, stage_map
        self._taken_microbatches = defaultdict[tuple[str, int, int], set[int]](set)
        self._next_position = Counter[tuple[str, int, int]]()  # of the next microbatch among those that enter its pipe
        self._first_stage = dict(reversed(stage_map.held_by(index)))  # of each pipe: it replaces the later ones

    async def forward(self, pipe: int, stage: int | None = None, microbatch: int | None = None) -> None:
        """Forward of the next (or the given) microbatch of a pipe through this worker's stage of that pipe."""
        await self.do("F", pipe, stage, microbatch)

    async def backward(self, pipe: int, stage: int | None = None, microbatch: int | None = None) -> None:
        """Whole backward: the gradients of the input and of the weights."""
        await self.do("B", pipe, stage, microbatch)

    async def backward_input(self, pipe: int, stage: int | None = None, microbatch: int | None = None) -> None:
        """Input half of the backward; the weight half stays pending until `backward_weight`."""
        await self.do("I", pipe, stage, microbatch)

    async def backward_weight(self, pipe: int, stage: int | None = None, microbatch: int | None = None) -> None:
        """Weight half of the backward."""
        await self.do("W", pipe, stage, microbatch)

    async def sync(self, stage: int) -> None:
        """Start the sum of a stage's gradient over all its holders; does not wait for its end.

        At most once per stage, after the stage's last backward (or weight half) on this worker. A stage without this
        call is summed where an idle gap lets the sum run unnoticed, or else at the end (`programs.overlap`).
        """
        await self.do(SUM, EVERY, stage, EVERY)

    async def do(self, op: str, pipe: int, stage: int | None = None, microbatch: int | None = None) -> None:
        """The verb of an op: F, B, I, W or S."""
        stage, microbatch = self._pick(op, pipe, stage, microbatch)
        self._taken_microbatches[op, pipe, stage].add(microbatch)
        await self._execute(op, pipe, stage, microbatch)

    def here(self, op: str, pipe: int, stage: int | None = None, microbatch: int | None = None) -> bool:
        """Whether the next (or given) F, B or I of a pipe could start now; takes no message."""
        return self._has_arrived((op, pipe, *self._pick(op, pipe, stage, microbatch)))

    async def wait(self, *choices: WaitChoice, patience: float = math.inf) -> str | None:
        """Wait until one of these instructions could start.

        A choice drops out once it has no instruction left; training without a flush may end early. If one choice is
        left and the patience has no limit, return at once, as the verb itself waits for the message. Only an
        asynchronous schedule may let its order of F and B depend on the result.

        Args:
            patience: the longest wait, as a share of the seconds of a weight half. A wait with a limit is only for a
                message that is due next in the order that was proved.
        Returns: the op of the first of these choices that could start. None: no instruction is left, or the patience
            has ended.
        Raises:
            ScheduleError: an op that waits for no message.
        """
        if unknown := {op for op, *_ in choices if op not in RECEIVING}:
            fact = f"worker {self.index} waits for the op {unknown.pop()!r}"
            raise ScheduleError(f"{fact}; known: {', '.join(RECEIVING)}")
        keys = [
            (op, pipe, *self._pick(op, pipe, *stage))
            for op, pipe, *stage in choices
            if await self._remains(op, pipe, *stage)
        ]
        if patience < math.inf:
            return await self._wait_at_most(patience, keys)
        if len(keys) < 2:
            return keys[0][0] if keys else None  # its verb waits for the message
        while (op := self._first_ready(keys)) is None:
            await self._wait_for_arrival(keys, math.inf)
        return op

    async def _wait_at_most(self, patience: float, keys: Sequence[InstructionKey]) -> str | None:
        """The op of the first of these instructions that could start now or after one wait; None: none could."""
        if (op := self._first_ready(keys)) is not None:
            return op
        await self._wait_for_arrival(keys, patience)
        return self._first_ready(keys)

    def _first_ready(self, keys: Sequence[InstructionKey]) -> str | None:
        return next((key[0] for key in keys if self._has_arrived(key)), None)

    @property
    def _weight_halves(self) -> int:
        """Weight halves requested so far."""
        return sum(len(microbatches) for (op, _, _), microbatches in self._taken_microbatches.items() if op == "W")

    @abstractmethod
    async def _execute(self, op: str, pipe: int, stage: int, microbatch: int) -> None:
        """Run one instruction; op is F, B, I, W or S."""

    def _has_arrived(self, key: InstructionKey) -> bool:
        """Whether an instruction can start: its message has arrived, or it needs no message. Returns at once.

        A worker without this knowledge returns True, as here: then no weight half runs first, and the verb waits.
        """
        return True

    async def _wait_for_arrival(self, choices: Sequence[InstructionKey], patience: float) -> None:
        """Wait until one of these instructions has its message, or the patience ends; at the call none has it.

        A worker that does not know which message is due does not wait, as here.
        """
        if patience == math.inf:
            fact = f"worker {self.index} cannot wait for one of several messages"
            raise ScheduleError(f"{fact}; let the stage map of an asynchronous schedule say its `updates`")

    async def _remains(self, op: str, pipe: int, stage: int | None = None) -> bool:
        """Whether an op of a pipe has a further microbatch here; waits until this is decided."""
        stage = self._stage_of(pipe) if stage is None else stage
        return len(self._taken_microbatches[op, pipe, stage]) < len(self.stage_map.microbatches[pipe])

    def _pick(self, op: str, pipe: int, stage: int | None = None, microbatch: int | None = None) -> tuple[int, int]:
        stage = self._stage_of(pipe) if stage is None else stage
        if microbatch is None:
            key = op, pipe, stage
            microbatches = self.stage_map.microbatches[pipe]
            position = self._next_position[key]
            while position < len(microbatches) and microbatches[position] in self._taken_microbatches[key]:
                position += 1
            self._next_position[key] = position
            if position == len(microbatches):
                fact = f"worker {self.index} asks for one {op} more than there are (pipe: {pipe}, stage: {stage}"
                raise ScheduleError(f"{fact}, microbatches: {position}); let the schedule stop there")
            microbatch = microbatches[position]
        return stage, microbatch

    def _stage_of(self, pipe: int) -> int:
        """This worker's first stage of a pipe."""
        if pipe not in self._first_stage:
            raise ScheduleError(f"worker {self.index} holds no stage of pipe {pipe}; use a pipe that it holds")
        return self._first_stage[pipe]
