"""Executors: they run the computations of a stage, one at a time, and never block the event loop.

`TorchExecutor` computes in its own thread; that of tests and benchmarks only waits as long as the work would take.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from pipelined.actors.device.follower import PATIENCE_S, FollowedWork, Follower
from pipelined.actors.device.torch_devices import device_of_rank, memory_of
from pipelined.actors.device.work import DeviceWork, WorkThread
from pipelined.aio.clock import Clock, RealClock
from pipelined.errors import OutOfMemory, ran_out_of_memory
from transports import Nursery, Transport
from transports.shm.cores import own_cores

T = TypeVar("T")
OPS_IN_ERRORS = {
    "update": "the update",
    "gradient": "the copy of a gradient",
    "values": "the copy of the parameters' values",
    **dict.fromkeys(("norm", "square"), "the gradient norm"),
    "build": "the building of a stage",
    "evaluate": "an evaluation",
    "finish": "the rounding of exact sums",
    "statistics": "the merge of running statistics",
    **dict.fromkeys(("snapshot", "copy"), "the copy of the state"),
}
"""What an error calls these computations; others have the name of their op."""


class ComputeQueue(Protocol):
    """What runs computations one at a time: an executor, one with a watchdog, or a record of what is computed."""

    async def run(self, op: str, work: Callable[[], T]) -> tuple[T, float, float]:
        """See `Executor.run`."""


class Executor(ABC):
    """Runs the computations of one worker, one at a time, in the order in which they are queued.

    Attributes:
        device: the torch device of the tensors that it computes with: "cpu" or "cuda:0".
        busy: seconds spent computing since the executor was made.
        took: seconds of the last computation of each op.
        name, owner, planned_memory, remedy: what an error of memory says; see `configure`.
    """

    device = "cpu"
    name, owner = "", ""
    planned_memory: Callable[[], float | None] | None = None
    remedy: str | None = None

    def __init__(self, clock: Clock, on_busy: Callable[[bool], None] = lambda busy: None):
        self.clock = clock
        self.busy = 0.0
        self.took = dict[str, float]()
        self._on_busy, self._unfinished = on_busy, 0
        self._beside: list[ThreadPoolExecutor] = []

    def configure(
        self,
        *,
        name: str | None = None,
        owner: str | None = None,
        planned_memory: Callable[[], float | None] | None = None,
        remedy: str | None = None,
    ) -> None:
        """Set what the error says where memory runs out; what is not given stays as it is.

        Args:
            name, owner: of the process, where it has one; the rank that computes, with its stages.
            planned_memory: counts the bytes of its plan at its fullest; it returns None where they cannot be counted.
            remedy: see `OutOfMemory`.
        """
        self.name = name or self.name
        self.owner = owner or self.owner
        self.planned_memory = planned_memory or self.planned_memory
        self.remedy = remedy or self.remedy

    @abstractmethod
    async def run(self, op: str, work: Callable[[], T], report_at_once: bool = True) -> tuple[T, float, float]:
        """Queue one computation, and wait for its end.

        Args:
            op: "forward", "backward", … (a timed executor has a duration for each).
            work: computes and returns a result; on a timed executor it must be cheap.
            report_at_once: whether to return at once after the end; else it may be noticed together with the next end.
        Returns: the result of `work`, and its start and end, in seconds of the clock.
        Cancelled: waits up to `PATIENCE_S` for running work, then raises the cancellation.
        """

    def submit(self, parent: Nursery, work: FollowedWork) -> None:
        """Queue one computation, and return at once; `work.finish` is called with the result, unless the work fails.

        Args:
            parent: fails with an error of the work or of `work.finish`; waits for the computation when its block
                ends. Its cancellation takes a computation that has not begun out of the queue.
        """

        async def follow() -> None:
            work.finish(*await self.run(work.op, work.function, work.report_at_once))

        parent.create_task(follow())

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Name an operation of this rank in the error if memory runs out inside the `with` block.

        Raises:
            OutOfMemory: that it did; one that names a part of the operation is left as it is.
        """
        try:
            yield
        except Exception as error:
            if isinstance(error, OutOfMemory) or not ran_out_of_memory(error):
                raise
            raise self.out_of_memory(f"{self.owner}: {what}" if self.owner else what, error) from error

    def out_of_memory(self, doing: str, error: BaseException) -> OutOfMemory:
        """The error of an operation for which no memory is left, with the bytes planned and free."""
        planned = None
        with suppress(Exception):  # counting them runs code of the user's schedule and layers
            planned = self.planned_memory and self.planned_memory()
        plan = "" if planned is None else f"planned: {planned / 2**20:,.1f} MiB, "
        room = f" ({plan}free on {self.device}: {memory_of(self.device)})"
        return OutOfMemory(f"{self.name}: {doing}" if self.name else doing, error, room, self.remedy)

    def thread_beside(self, name: str) -> ThreadPoolExecutor:
        """A thread for work beside that of the executor; it is closed with it."""
        self._beside.append(ThreadPoolExecutor(1, thread_name_prefix=name))
        return self._beside[-1]

    def close(self) -> None:
        """Refuse further work; what was begun, or given up, is not waited for."""
        for pool in self._beside:
            pool.shutdown(wait=False)

    def _count_queued(self) -> None:
        self._unfinished += 1
        if self._unfinished == 1:
            self._on_busy(True)

    def _count_ended(self) -> None:
        self._unfinished -= 1
        if not self._unfinished:
            self._on_busy(False)

    def _record(self, op: str, seconds: float) -> None:
        self.took[op] = seconds
        self.busy += seconds


@dataclass(eq=False, slots=True)
class AwaitedWork(DeviceWork):
    """A computation for the end of which a coroutine waits."""

    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def reported(self) -> None:
        self.ended.set()


class TorchExecutor(Executor):
    """Computes on a CPU or a GPU, in one thread, so that messages are sent and received at the same time.

    The thread takes the next computation out of its queue without waiting for the event loop.

    Args:
        device: "cpu" or "cuda:0".
        on_busy: called with True when work is queued and with False when none is left (a transport's `set_computing`).
    """

    def __init__(self, device: str, clock: Clock, on_busy: Callable[[bool], None] = lambda busy: None):
        super().__init__(clock, on_busy)
        self.device = device
        self._thread = WorkThread(f"device {device}", self._compute, self._report)
        self._follower: Follower | None = None

    @classmethod
    def of_rank(
        cls, transport: Transport, threads: int | None = None, *, ranks_sharing: int = 0, share_devices: bool = False
    ) -> "TorchExecutor":
        """The executor of a rank: on its GPU where the machine has one, else on the CPU.

        On the CPU this sets torch's threads.

        Args:
            transport: knows the ranks of this machine; learns when work begins and ends.
            threads: threads on the CPU; None: the rank's share of the cores of this machine.
            ranks_sharing: the number of ranks that are to share the cores. Default: those of this machine.
            share_devices: whether ranks may share a GPU.
        Raises:
            UsageError: they would have to, and may not.
        """
        import torch

        device = device_of_rank(transport, share=share_devices)
        if device == "cpu":
            ranks_sharing = ranks_sharing or len(transport.ranks_here)
            torch.set_num_threads(threads or max(1, len(own_cores()) // ranks_sharing))
        return cls(device, RealClock(), transport.set_computing)

    async def run(self, op: str, work: Callable[[], T], report_at_once: bool = True) -> tuple[T, float, float]:
        """See `Executor.run`; this takes one turn of the event loop, `run_in_executor` takes three."""
        queued = AwaitedWork(op, work, report_at_once)
        del work  # what is queued has it until its end
        self._thread.put(queued)
        self._count_queued()
        try:
            await queued.ended.wait()
        except asyncio.CancelledError:
            if not self._withdraw(queued):
                with suppress(TimeoutError):
                    async with asyncio.timeout(PATIENCE_S):
                        await queued.ended.wait()
            raise
        return queued.result(), queued.start, queued.end

    def submit(self, parent: Nursery, work: FollowedWork) -> None:
        """See `Executor.submit`; one task follows all computations of a parent until none is left."""
        self._thread.put(work)
        self._count_queued()
        if self._follower is None or self._follower.over or self._follower.parent is not parent:
            self._follower = Follower(parent, self._withdraw)
        self._follower.follow(work)

    def close(self) -> None:
        super().close()
        self._thread.close()

    def _compute(self, work: DeviceWork) -> None:
        """Do the work; wait for the kernels of a GPU here, in the thread, not in the event loop."""
        work.start = self.clock.now()
        try:
            with self.doing(OPS_IN_ERRORS.get(work.op, work.op)):
                work.value = work.function()
                if self.device != "cpu":
                    import torch

                    torch.cuda.synchronize(self.device)
        except BaseException as error:
            work.error = error
        del work.function
        work.end = self.clock.now()

    def _withdraw(self, work: DeviceWork) -> bool:
        if withdrawn := self._thread.withdraw(work):
            self._count_ended()
        return withdrawn

    def _report(self, work: DeviceWork) -> None:
        self._count_ended()
        self._record(work.op, work.end - work.start)
        work.reported()
