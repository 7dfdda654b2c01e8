"""A device's thread goes on by itself; the loop learns of each end, at the latest before the device rests."""

import asyncio
import threading
import weakref

import pytest

from pipelined.actors.device.executor import AwaitedWork
from pipelined.actors.device.work import DeviceWork, WorkThread


class Gate:
    """Work that has begun, and ends when it is let go."""

    def __init__(self):
        self._begun, self._go = threading.Event(), threading.Event()

    def __call__(self):
        self._begun.set()
        assert self._go.wait(30)

    async def begun(self):
        assert await asyncio.to_thread(self._begun.wait, 30)

    def go(self):
        self._go.set()


class Rig:
    """A thread with three computations: two gates, and one that waits."""

    def __init__(self, report_at_once=False):
        self._changed = asyncio.Event()
        self.ended, self.thread = [], WorkThread("test", lambda work: work.function(), self.report)
        self.first, self.second = Gate(), Gate()
        works = {"first": self.first, "second": self.second, "third": lambda: None}
        self.works = [DeviceWork(op, work, report_at_once) for op, work in works.items()]
        for work in self.works:
            self.thread.put(work)

    def report(self, work):
        self.ended.append(work.op)
        self._changed.set()

    async def until(self, *ended):
        async with asyncio.timeout(20):
            while self.ended != list(ended):
                self._changed.clear()
                await self._changed.wait()

    async def in_the_second(self):
        """Let the first computation end, and the second begin."""
        await self.first.begun()
        self.first.go()
        await self.second.begun()


def on_rig(scene, **options):
    async def main():
        rig = Rig(**options)
        try:
            await scene(rig)
        finally:
            rig.first.go(), rig.second.go(), rig.thread.pool.shutdown()

    asyncio.run(main())


def test_an_end_that_is_not_awaited_is_reported_with_the_next():
    async def scene(rig):
        await rig.in_the_second()
        await asyncio.to_thread(lambda: None)
        assert rig.ended == []
        rig.second.go()
        await rig.until("first", "second", "third")

    on_rig(scene)


def test_an_awaited_end_is_reported_at_once():
    async def scene(rig):
        await rig.in_the_second()
        await rig.until("first")

    on_rig(scene, report_at_once=True)


def test_a_failed_piece_is_reported_at_once():
    """The computations after it are in vain, and there may be many."""

    async def scene(rig):
        rig.works[0].error = ValueError("broken")
        await rig.in_the_second()
        await rig.until("first")

    on_rig(scene)


def test_withdrawing_the_last_piece_that_waits_reports_the_ends_that_counted_on_it():
    async def scene(rig):
        await rig.in_the_second()
        assert rig.thread.withdraw(rig.works[2])
        await rig.until("first")
        assert not rig.thread.withdraw(rig.works[1]), "it runs"
        rig.second.go()
        await rig.until("first", "second")
        assert not rig.thread.withdraw(rig.works[1]), "it has ended"

    on_rig(scene)


def test_a_withdrawn_piece_is_not_done_and_those_around_it_are():
    async def scene(rig):
        await rig.first.begun()
        assert rig.thread.withdraw(rig.works[1])
        rig.first.go()
        await rig.until("first", "third")
        assert not rig.second._begun.is_set()

    on_rig(scene)


def test_a_report_to_a_loop_that_has_ended_does_not_silence_the_next_loop():
    async def gives_up():
        thread.put(DeviceWork("given up", gate))
        await gate.begun()

    async def goes_on():
        ended = asyncio.Event()
        thread.put(AwaitedWork("next", lambda: None, ended=ended))
        async with asyncio.timeout(20):
            await ended.wait()

    gate, thread = Gate(), WorkThread("test", lambda begun: begun.function(), lambda ended: ended.reported())
    asyncio.run(gives_up())
    gate.go()
    thread.pool.submit(lambda: None).result(30)
    asyncio.run(goes_on())
    thread.pool.shutdown()


def test_neither_result_nor_error_outlives_its_reading():
    """They hold tensors, and a computation may be kept longer than they should be."""

    class Big:
        pass

    value = Big()
    work = DeviceWork("forward", lambda: None)
    work.value, there = value, weakref.ref(value)
    del value
    work.result()
    assert there() is None
    work.error = ValueError("broken")
    with pytest.raises(ValueError, match="broken"):
        work.result()
    assert work.error is None
