"""What an emulated peer has in place of a stage, a device and a codec's core: the last two only let time pass.

The benchmark gives every duration, in seconds or seconds a byte.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness.timed_executor import TimedExecutor
from pipelined.aio.clock import Clock
from pipelined.swarm.stages.swarm_stage import BackwardResult, Microbatch
from transports import Block
from transports.rpc import Endpoint, Handler, Request, Response

PASSES = ("forward", "backward")


@dataclass(frozen=True)
class Work:
    """What a microbatch costs at a stage, in seconds of a device of speed 1; a backward computes forward again."""

    forward: float
    backward: float

    @property
    def seconds(self) -> float:
        return self.forward + self.backward


class Counted(TimedExecutor):
    """Knows when it has last done a forward or a backward, and what it has computed of the one that it is at.

    Attributes:
        ended: the moment; 0 before.
    """

    ended = 0.0
    _began: float | None = None

    @property
    def worked(self) -> float:
        """Seconds computed until now."""
        return self.busy + (0.0 if self._began is None else self.clock.now() - self._began)

    async def _compute(self, op: str, seconds: float) -> None:
        self._began = self.clock.now()
        try:
            await super()._compute(op, seconds)
        finally:
            self._began = None
            if op in PASSES:
                self.ended = self.clock.now()


@dataclass(frozen=True)
class CodingTime:
    """Seconds a byte of coded values, as a core beside the device makes them and turns them back."""

    out: float = 0.0
    back: float = 0.0


def take_time_to_code(endpoint: Endpoint, clock: Clock, takes: CodingTime, scale: float) -> None:
    """Let the time pass around this endpoint's forwards and backwards that their codec would take.

    Args:
        scale: how many bytes are meant by one.
    """

    def timed(handler: Handler) -> Handler:
        async def handle(request: Request) -> Response:
            await clock.sleep(takes.back * scale * sum(block.nbytes for block in request.blocks))
            said = await handler(request)
            await clock.sleep(takes.out * scale * sum(block.nbytes for block in said.blocks))
            return said

        return handle

    _wrap(endpoint, PASSES, timed)


def hold_back(endpoint: Endpoint, topic: str, wait: Callable[[], Awaitable[None]]) -> None:
    """Answer no question of a topic at this endpoint before a wait is over."""

    def later(handler: Handler) -> Handler:
        async def handle(request: Request) -> Response:
            await wait()
            return await handler(request)

        return handle

    _wrap(endpoint, (topic,), later)


def _wrap(endpoint: Endpoint, topics: Sequence[str], wrapped: Callable[[Handler], Handler]) -> None:
    handle = endpoint.handle

    def answering(topic: str, handler: Handler, *limits: int) -> None:
        handle(topic, wrapped(handler) if topic in topics else handler, *limits)

    endpoint.handle = answering


def device_seconds(work: Work, last: bool, speed: float) -> dict[str, float]:
    """By op. The last stage is asked for both passes at once."""
    backward = work.seconds if last else work.backward
    return {"forward": work.forward / speed, "backward": backward / speed}


class Relay:
    """A stage with few parameters, which passes on as many numbers as it was given.

    Args:
        outside: what the first stage is given, and the last one's labels; like tensors between stages where None.
        ends: whether it is the first stage, and the last.
    """

    model = "emulated"
    maxima = 0

    def __init__(
        self, elements: int, outside: np.ndarray | None = None, ends: tuple[bool, bool] = (True, True), sums: int = 1
    ):
        self.sums, self._weights = np.zeros(sums, np.float32), np.ones(1, np.float32)
        self._passed = np.ones(elements, np.float32)
        given = self._passed if outside is None else outside
        self._given = [given if end else self._passed for end in ends]

    def expects(self) -> Sequence[tuple[str, tuple[int, ...]]]:
        return [(self._given[0].dtype.name, self._given[0].shape)]

    def expects_given(self) -> Sequence[tuple[str, tuple[int, ...]]]:
        return [(self._given[1].dtype.name, self._given[1].shape)]

    def forward(self, microbatch: Microbatch, inputs: Sequence[Block]) -> Sequence[Any]:
        return [self._passed]

    def backward(
        self, microbatch: Microbatch, inputs: Sequence[Block], given: Sequence[Block], count: bool
    ) -> BackwardResult:
        self.sums += np.float32(count)
        return BackwardResult([self._passed], 0.0)

    def clear(self) -> None:
        self.sums[:] = 0

    def fits(self, total: np.ndarray) -> bool:
        return True

    def square(self, total: np.ndarray) -> float:
        return float(np.square(total).sum())

    def apply(self, step: int, total: np.ndarray, scale: float) -> None:
        self._weights += total[:1] * np.float32(scale)

    def parts(self, flat: np.ndarray) -> Mapping[str, Any]:
        return {"weights": flat}

    def state(self) -> Mapping[str, Any]:
        return {"weights": self._weights}

    def load(self, state: Mapping[str, Block]) -> None:
        self._weights[:] = state["weights"].numpy()
