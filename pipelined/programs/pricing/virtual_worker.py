"""A schedule's worker on the virtual clock: each verb takes the seconds of its instruction and is recorded.

A worker waits for a message or computes, one instruction at a time. Its platform gives the seconds of computing and
sending.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from pipelined.aio.clock import VirtualClock
from pipelined.programs.due_messages import DueMessages
from pipelined.programs.instructions import Instruction, Token
from pipelined.programs.pricing.timeline import Timed
from pipelined.schedules import InstructionKey, StageMap, Worker


class Platform(Protocol):
    """The cores and links of the workers of one pipeline group."""

    async def compute(self, worker: int, seconds: float) -> None:
        """Compute work that takes `seconds` on a core of its own; it may take longer here."""

    def travel(self, token: Token, source: int, target: int) -> float:
        """Seconds of a message over a free link; infinite if that cannot be known in advance."""

    def send(self, token: Token, source: int, target: int) -> float:
        """Send a token from one worker to another, or to itself; returns the time of its arrival."""


class InstructionCosts(NamedTuple):
    """The costs of an instruction: the tokens that it takes, those that it gives with their workers, its seconds."""

    instruction: Instruction
    takes: list[Token]
    gives: list[tuple[Token, int]]
    seconds: float


class CostCache(dict[tuple[str, int, int, int], InstructionCosts]):
    """The costs of each instruction, calculated once for all groups with the same stage map.

    Args:
        seconds: the seconds of a computation on a core of its own; the start of a gradient sum takes none.
    """

    def __init__(self, stage_map: StageMap, seconds: Callable[[Instruction], float]):
        super().__init__()
        self._stage_map, self._seconds = stage_map, seconds

    def __missing__(self, key: tuple[str, int, int, int]) -> InstructionCosts:
        instruction = Instruction(*key)
        depth = self._stage_map.depth
        gives = [(token, self._stage_map.placement[token[1], token[2]]) for token in instruction.gives(depth)]
        seconds = self._seconds(instruction) if instruction.computes else 0.0
        self[key] = InstructionCosts(instruction, instruction.takes(depth), gives, seconds)
        return self[key]


class GroupMessages:
    """The messages of a pipeline group: the arrival of each sent one, and the end of the computation of each other."""

    def __init__(self) -> None:
        self._arrivals: dict[Token, float] = {}
        self._waiters: dict[Token, asyncio.Future[float]] = {}
        self._computations: dict[Token, tuple[int, float]] = {}

    def announce(self, token: Token, worker: int, end: float) -> None:
        """Record that a worker begins to compute a message, and the end of that computation."""
        self._computations[token] = worker, end

    def computation_of(self, token: Token) -> tuple[int, float]:
        """(worker, end) of the computation of a message; (-1, infinity) if none has begun."""
        return self._computations.get(token, (-1, math.inf))

    def arrival(self, token: Token) -> float | None:
        """The arrival of a message; None if it has not been sent."""
        return self._arrivals.get(token)

    def deliver(self, token: Token, arrival: float) -> None:
        """Record that a message is sent; if it is sent again, the first time counts."""
        if token not in self._arrivals:
            self._arrivals[token] = arrival
            if token in self._waiters:
                self._waiters.pop(token).set_result(arrival)

    async def take(self, token: Token) -> float:
        """Wait until a message is sent; returns its arrival."""
        return self._arrivals[token] if token in self._arrivals else await self._arrival_of(token)

    async def watch(self, token: Token) -> float:
        """As `take`, for a caller that may be cancelled."""
        return self._arrivals[token] if token in self._arrivals else await asyncio.shield(self._arrival_of(token))

    def _arrival_of(self, token: Token) -> asyncio.Future[float]:
        return self._waiters.setdefault(token, asyncio.get_running_loop().create_future())


class VirtualWorker(Worker):
    """One worker on the virtual clock.

    Args:
        costs: the costs of each instruction.
        messages: the messages of the group.
        platform: the cores and links of the group.
        on_done: called with each instruction when it has ended.
        due_messages: the messages that a dynamic schedule waits for with a limit; None: no message.

    Attributes:
        timed_instructions: its instructions with their times.
    """

    def __init__(
        self,
        index: int,
        stage_map: StageMap,
        costs: CostCache,
        messages: GroupMessages,
        platform: Platform,
        *,
        on_done: Callable[[Instruction], None] = lambda instruction: None,
        due_messages: DueMessages | None = None,
    ):
        super().__init__(index, stage_map)
        self.timed_instructions: list[Timed] = []
        self._costs = costs
        self._messages = messages
        self._platform = platform
        self._on_done = on_done
        self._due_messages = due_messages or DueMessages()
        self._clock = VirtualClock()

    async def _execute(self, op: str, pipe: int, stage: int, microbatch: int) -> None:
        instruction, takes, gives, seconds = self._costs[op, pipe, stage, microbatch]
        for token in takes:
            wait = await self._messages.take(token) - self._clock.now()
            if wait > 0:
                await self._clock.sleep(wait)
        start = self._clock.now()
        for token, _ in gives:
            self._messages.announce(token, self.index, start + seconds)
        await self._platform.compute(self.index, seconds)
        end = self._clock.now()
        self.timed_instructions.append(Timed(instruction, start, end))
        for token, target in gives:
            self._messages.deliver(token, self._platform.send(token, self.index, target))
        self._on_done(instruction)

    def _has_arrived(self, key: InstructionKey) -> bool:
        return all(map(self._token_has_arrived, self._costs[key].takes))

    async def _wait_for_arrival(self, choices: Sequence[InstructionKey], patience: float) -> None:
        seconds = None
        if patience < math.inf:
            choices = [key for key in choices if self._due_messages.covers(Instruction(*key), self._weight_halves)]
            seconds = patience * max((self._costs["W", *key[1:]].seconds for key in choices), default=0.0)
        if choices:
            await self._first_arrival(choices, seconds)

    async def _first_arrival(self, choices: Sequence[InstructionKey], seconds: float | None) -> None:
        tasks = [asyncio.create_task(self._wait_until_arrived(self._costs[choice].takes)) for choice in choices]
        try:
            await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _wait_until_arrived(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            await self._clock.sleep(max(0.0, await self._messages.watch(token) - self._clock.now()))

    def _token_has_arrived(self, token: Token) -> bool:
        """A message that another worker completes at this moment counts as arrived, even if that worker runs later."""
        arrival = self._messages.arrival(token)
        now = self._clock.now()
        if arrival is None:
            source, end = self._messages.computation_of(token)
            arrival = end + self._platform.travel(token, source, self.index)
        return arrival <= now or math.isclose(arrival, now)
