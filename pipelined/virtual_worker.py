"""The worker that prices: it answers a schedule's verbs by letting time pass on the virtual clock, and writes it down.

The rule: a worker waits for a message or computes, one instruction at a time. What computing and sending take is asked
of its bench; this file knows instructions and tokens, and neither costs nor machines.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Protocol

from pipelined.clock import VirtualClock
from pipelined.program import Instruction, Token
from pipelined.schedules import Layout, Worker
from pipelined.timeline import Timed


class Bench(Protocol):
    """What the workers of one pipeline group compute on and send over."""

    def seconds(self, instruction: Instruction) -> float:
        """How long an instruction takes on a core of its own."""
        ...

    async def compute(self, worker: int, seconds: float) -> None:
        """Let pass what computing takes here."""
        ...

    def travel(self, token: Token, source: int, target: int) -> float:
        """Seconds a message takes over a link that is free, 0 on one worker; infinite where that cannot be told."""
        ...

    def send(self, token: Token, source: int, target: int) -> float:
        """Put a message on its way; returns when it arrives."""
        ...


class Post:
    """When each message of a pipeline group is here, for whoever waits for it, and when what is being made will be."""

    def __init__(self) -> None:
        self._here: dict[Token, float] = {}
        self._waiting: dict[Token, asyncio.Future[float]] = {}
        self._expected: dict[Token, float] = {}

    def expect(self, token: Token, arrival: float) -> None:
        """Say when a message will be here that is being made."""
        self._expected[token] = arrival

    def due(self, token: Token) -> float:
        """When it is here: never, as far as can be known now, if nobody has begun."""
        return self._here.get(token, self._expected.get(token, math.inf))

    def leave(self, token: Token, arrival: float) -> None:
        """A message is on its way."""
        if token not in self._here:
            self._here[token] = arrival
            if token in self._waiting:
                self._waiting.pop(token).set_result(arrival)

    async def take(self, token: Token) -> float:
        """Wait until a message is on its way; returns when it arrives."""
        if token in self._here:
            return self._here[token]
        return await self._waiting.setdefault(token, asyncio.get_running_loop().create_future())


class VirtualWorker(Worker):
    """One worker on the virtual clock.

    Args:
        post: shared by the workers of the group.
        bench: what it computes on and sends over.
        on_done: told of each instruction when it has ended.

    Attributes:
        done: what it did and when.
    """

    def __init__(
        self,
        index: int,
        layout: Layout,
        post: Post,
        bench: Bench,
        on_done: Callable[[Instruction], None] = lambda instruction: None,
    ):
        super().__init__(index, layout)
        self.done: list[Timed] = []
        self._post, self._bench, self._on_done, self._clock = post, bench, on_done, VirtualClock()

    async def execute(self, op: str, pipe: int, stage: int, microbatch: int) -> None:
        instruction, clock = Instruction(op, pipe, stage, microbatch), self._clock
        for token in instruction.takes(self.layout.depth):
            wait = await self._post.take(token) - clock.now()
            if wait > 0:
                await clock.sleep(wait)
        start, seconds = clock.now(), self._bench.seconds(instruction)
        gives = [(token, self._target(token)) for token in instruction.gives(self.layout.depth)]
        for token, target in gives:
            self._post.expect(token, start + seconds + self._bench.travel(token, self.index, target))
        await self._bench.compute(self.index, seconds)
        self.done.append(Timed(instruction, start, clock.now()))
        for token, target in gives:
            self._post.leave(token, self._bench.send(token, self.index, target))
        self._on_done(instruction)

    def arrived(self, op: str, pipe: int, stage: int, microbatch: int) -> bool:
        return all(map(self._here, Instruction(op, pipe, stage, microbatch).takes(self.layout.depth)))

    def _here(self, token: Token) -> bool:
        """What ends elsewhere at this moment is expected already, though its worker may be run after this one."""
        arrival, now = self._post.due(token), self._clock.now()
        return arrival <= now or math.isclose(arrival, now)

    def _target(self, token: Token) -> int:
        """Whom a token is for: the holder of the stage it names."""
        return self.layout.placement[token[1], token[2]][0]
