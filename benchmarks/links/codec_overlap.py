"""A codec in a thread beside other work: what the work loses to it, and how late the event loop is meanwhile.

Each thread is bound to a core of its own where there are enough. Left alone, the system at times ran both on one
core for as long as an array takes, beside an idle one, and nothing can be hidden there.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from transports import new_event_loop, pack

TICK_S = 1e-3
SIDE = 256
"""Of the square matrices; their product is the other work."""


@dataclass(frozen=True)
class Overlap:
    """One codec beside computing; seconds are medians.

    Args:
        alone_s: of the coding alone.
        work_s: of the computing alone.
        both_s: of both, begun at once.
        late_s: the most by which a tick of 1 ms came late while an array was coded.
        cores: that there were for both.
    """

    codec: str
    nbytes: int
    alone_s: float
    work_s: float
    both_s: float
    late_s: float
    cores: int

    @property
    def hidden(self) -> float:
        """How much of the shorter of the two was hidden behind the longer: 1 is all of it."""
        return (self.alone_s + self.work_s - self.both_s) / min(self.alone_s, self.work_s)

    def line(self) -> str:
        """The finding in one line."""
        alone, work, both = (f"{seconds * 1e3:.0f} ms" for seconds in (self.alone_s, self.work_s, self.both_s))
        head = f"{self.codec} of {self.nbytes >> 20} MiB in a thread: {alone}, beside {work} of computing {both}"
        late = f"a tick of 1 ms at most {self.late_s * 1e3:.1f} ms late"
        return f"{head} on {self.cores} cores ({self.hidden:.0%} hidden); {late}"


def measure_overlap(codec: str, nbytes: int, rounds: int) -> Overlap:
    """Time coding alone, computing alone, and both at once, round after round."""
    array = np.random.default_rng(0).standard_normal(nbytes // 4, np.float32)
    if codec == "zstd":
        array = np.round(array, 1)  # or there would be nothing to do
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        found = [runner.run(_round(codec, array)) for _ in range(rounds + 1)][1:]
    alone, work, both, late = zip(*found, strict=True)
    medians = [statistics.median(seconds) for seconds in (alone, work, both)]
    return Overlap(codec, nbytes, *medians, max(late), len(os.sched_getaffinity(0)))


async def _round(codec: str, array: np.ndarray) -> tuple[float, float, float, float]:
    """Seconds of coding alone, of a computation about as long, and of both at once; and the latest tick."""
    left, right = (np.full((SIDE, SIDE), value, np.float32) for value in (0.5, 0.25))

    def code() -> None:
        pack(codec, [array])

    def compute() -> None:
        for _ in range(products):
            left @ right

    alone, late = await _watched(code)
    products = 20
    products = max(1, round(products * alone / await _in_threads(compute)))
    return alone, await _in_threads(compute), await _in_threads(code, compute), late


async def _in_threads(*works: Callable[[], None]) -> float:
    """Seconds until all of it is done, each in a thread."""
    start, cores = time.perf_counter(), sorted(os.sched_getaffinity(0))
    on_cores = [partial(_on, cores[place % len(cores)], work) for place, work in enumerate(works)]
    await asyncio.gather(*map(asyncio.to_thread, on_cores))
    return time.perf_counter() - start


def _on(core: int, work: Callable[[], None]) -> None:
    """Do it in this thread, on this core."""
    os.sched_setaffinity(0, {core})
    work()


async def _watched(work: Callable[[], None]) -> tuple[float, float]:
    """Seconds it took, and the most by which the event loop was late meanwhile."""
    late, doing = 0.0, asyncio.create_task(_in_threads(work))
    while not doing.done():
        start = time.perf_counter()
        await asyncio.sleep(TICK_S)
        late = max(late, time.perf_counter() - start - TICK_S)
    return doing.result(), late
