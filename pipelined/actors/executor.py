"""Where a stage's work is done. A device runs one piece of work at a time and never blocks the event loop.

Two devices answer the same call: `TorchDevice` computes for real in a thread of its own; `TimedDevice` only lets the
time pass that the work would take, on the clock it was given: emulated on the real clock, virtual on the virtual one.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from pipelined.aio.clock import Clock

T = TypeVar("T")
PATIENCE_S = 3.0
"""How long cancelled work may keep a rank that should tell its peers why it ends."""


class Device(ABC):
    """One worker's compute.

    Attributes:
        busy: seconds spent computing since the device was opened.
        took: seconds of the last piece of work of each op.
    """

    def __init__(self, clock: Clock, on_busy: Callable[[bool], None] = lambda busy: None):
        self.clock, self.busy, self.took = clock, 0.0, dict[str, float]()
        self._on_busy, self._turn = on_busy, asyncio.Lock()

    async def run(self, op: str, work: Callable[[], T]) -> tuple[T, float, float]:
        """Do one piece of work after those asked for before it.

        Args:
            op: "forward", "backward", … (what a timed device looks its duration up by).
            work: computes and returns; on a timed device it must be cheap.
        Returns: what `work` returned, and when it started and ended, in the clock's seconds.
        Cancelled: work that has begun is waited for, `PATIENCE_S` at most, before the cancellation is passed on.
        """
        async with self._turn:
            self._on_busy(True)
            start = self.clock.now()
            try:
                result = await self._compute(op, work)
            finally:
                self._on_busy(False)
                end = self.clock.now()
                self.took[op] = end - start
                self.busy += end - start
        return result, start, end

    @abstractmethod
    async def _compute(self, op: str, work: Callable[[], T]) -> T: ...

    def close(self) -> None:  # noqa: B027 (most devices hold nothing)
        """Let go of the device."""


class TorchDevice(Device):
    """Computes on a CPU or a GPU, in one thread, so that messages move meanwhile.

    Args:
        name: "cpu" or "cuda:0".
        on_busy: told True when work begins and False when it ends (a transport's `computing`).
    """

    def __init__(self, name: str, clock: Clock, on_busy: Callable[[bool], None] = lambda busy: None):
        super().__init__(clock, on_busy)
        self.name = name
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"device {name}")

    async def _compute(self, op: str, work: Callable[[], T]) -> T:
        """Hand the work over and back with one turn of the loop each: an executor's futures take three."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[T, None] | tuple[None, BaseException]] = loop.create_future()
        running = self._thread.submit(lambda: loop.call_soon_threadsafe(_settle, done, self._finish(work)))
        try:
            result, error = await done
        except asyncio.CancelledError:
            await asyncio.wait([asyncio.wrap_future(running)], timeout=PATIENCE_S)
            raise
        if error is not None:
            try:
                raise error
            finally:
                del error  # or it and this frame would keep each other, and the work's tensors, alive
        return result  # type: ignore[return-value]

    def _finish(self, work: Callable[[], T]) -> tuple[T, None] | tuple[None, BaseException]:
        """Run the work to its end: a GPU's kernels are waited for here, in the thread, not on the loop."""
        try:
            result = work()
            if self.name != "cpu":
                import torch

                torch.cuda.synchronize(self.name)
        except BaseException as error:
            return None, error
        return result, None

    def close(self) -> None:
        """Take no more work; what has begun and was given up is not waited for."""
        self._thread.shutdown(wait=False)


class TimedDevice(Device):
    """Lets the time pass that each kind of work takes: 64 "GPUs" fit two cores, and 2,048 a virtual clock.

    Args:
        seconds: duration of each op; an op it does not know takes none.
    """

    def __init__(self, seconds: Mapping[str, float], clock: Clock, on_busy: Callable[[bool], None] = lambda busy: None):
        super().__init__(clock, on_busy)
        self.seconds = seconds

    async def _compute(self, op: str, work: Callable[[], Any]) -> Any:
        await self.clock.sleep(self.seconds.get(op, 0.0))
        return work()


def _settle(done: "asyncio.Future[Any]", outcome: object) -> None:
    """Tell who waits, if somebody still does."""
    if not done.done():
        done.set_result(outcome)
