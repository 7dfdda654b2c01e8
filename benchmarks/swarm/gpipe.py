"""GPipe over the same slow links: this project's own schedule, walked by virtual workers on the virtual clock.

A link has the virtual network's rate, delay, jitter and order; a flush ends on all workers before the next begins on
any, at no cost for the agreement.
"""

import asyncio
import math

from benchmarks.swarm.devices import Work
from pipelined.aio.clock import VirtualClock, run_virtual
from pipelined.programs.instructions import Token
from pipelined.programs.pricing.virtual_worker import CostCache, GroupMessages, Platform, VirtualWorker
from pipelined.schedules import Shape, find
from transports.emulation.link_timing import LinkTiming
from transports.emulation.options import LinkProfile


class SlowLinks(Platform):
    """A core for each worker, and a slow link from each to each.

    Args:
        tensor: bytes of an activation or a gradient.
    """

    def __init__(self, shape: LinkProfile, tensor: float):
        self._shape, self._tensor, self._clock = shape, tensor, VirtualClock()
        self._links: dict[tuple[int, int], LinkTiming] = {}

    async def compute(self, worker: int, seconds: float) -> None:
        await self._clock.sleep(seconds)

    def travel(self, token: Token, source: int, target: int) -> float:
        return math.inf

    def send(self, token: Token, source: int, target: int) -> float:
        now, ends = self._clock.now(), (source, target)
        if source == target:
            return now
        link = self._links.setdefault(ends, LinkTiming(self._shape, ends))
        return link.passage(now, round(self._tensor)).arrival


def flush_seconds(
    depth: int, microbatches: int, work: Work, shape: LinkProfile, tensor: float = 0.0, flushes: int = 1
) -> float:
    """Seconds of a flush, the mean of so many in a row."""
    gpipe = find("gpipe")
    stage_map = gpipe.stage_map(Shape(depth, microbatches))
    costs = CostCache(stage_map, lambda each: {"F": work.forward, "B": work.backward}[each.op])

    async def play() -> float:
        platform = SlowLinks(shape, tensor)
        for _ in range(flushes):
            messages = GroupMessages()
            async with asyncio.TaskGroup() as tasks:
                for index in range(stage_map.workers):
                    tasks.create_task(gpipe.schedule(VirtualWorker(index, stage_map, costs, messages, platform)))
        return VirtualClock().now() / flushes

    return run_virtual(play())
