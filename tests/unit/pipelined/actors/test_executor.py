"""A device does one piece of work at a time, off the loop, or only lets its time pass."""

import asyncio
import threading
import weakref

import pytest

from pipelined.actors.executor import TimedExecutor, TorchExecutor
from pipelined.aio.clock import RealClock, VirtualClock, run_virtual


def test_a_timed_device_takes_what_each_op_takes_one_after_another():
    async def main():
        device = TimedExecutor({"forward": 1.0, "backward": 2.0}, VirtualClock())
        spans = await asyncio.gather(*(device.run(op, lambda op=op: op) for op in ("forward", "backward", "other")))
        return spans, device.busy

    spans, busy = run_virtual(main())
    assert spans == [("forward", 0.0, 1.0), ("backward", 1.0, 3.0), ("other", 3.0, 3.0)]
    assert busy == 3.0


class Steps:
    """A clock that advances only by what is slept, and by what work adds."""

    def __init__(self):
        self.time = 0.0

    def now(self):
        return self.time

    async def sleep(self, seconds):
        self.time += seconds


@pytest.mark.parametrize(("work_first", "ends"), [(True, [1.0, 2.0]), (False, [1.25, 2.5])])
def test_what_work_itself_takes_is_part_of_its_duration_if_it_is_done_first(work_first, ends):
    clock = Steps()

    def work():
        clock.time += 0.25

    async def main():
        device = TimedExecutor({"forward": 1.0}, clock, work_first=work_first)
        for end in ends:
            await device.run("forward", work)
            assert clock.time == end

    asyncio.run(main())


def test_torch_work_leaves_the_loop_free():
    """The work waits for something that only the loop can do: on the loop's own thread it would never end."""

    async def main():
        device = TorchExecutor("cpu", RealClock())
        go = threading.Event()
        asyncio.get_running_loop().call_soon(go.set)
        try:
            return await device.run("forward", lambda: go.wait(30))
        finally:
            device.close()

    assert asyncio.run(main())[0] is True


def test_cancelled_work_is_finished_before_the_cancellation_passes():
    async def main():
        device, done = TorchExecutor("cpu", RealClock()), []
        started, go = threading.Event(), threading.Event()

        def work():
            started.set()
            go.wait(30)
            done.append(True)

        task = asyncio.ensure_future(device.run("forward", work))
        await asyncio.to_thread(started.wait, 30)
        task.cancel()
        await asyncio.sleep(0)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        device.close()
        return done

    assert asyncio.run(main()) == [True]


@pytest.mark.parametrize(("raised", "seen"), [(ValueError, ValueError), (StopIteration, RuntimeError)])
def test_what_work_raises_comes_out_of_the_run(raised, seen):
    """A future refuses to hold a StopIteration: a task that awaits one would wait for ever."""

    async def main():
        device = TorchExecutor("cpu", RealClock())

        def work():
            raise raised("broken")

        try:
            async with asyncio.timeout(20):
                with pytest.raises(seen, match=r"broken|StopIteration"):
                    await device.run("forward", work)
                return await device.run("forward", lambda: "on")
        finally:
            device.close()

    assert asyncio.run(main())[0] == "on"


def test_work_that_was_given_up_ends_by_itself():
    """Its loop is closed by then, and no callback runs."""

    async def main():
        task = asyncio.ensure_future(device.run("forward", lambda: (started.set(), go.wait(30), over.set())))
        await asyncio.to_thread(started.wait, 30)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task

    device = TorchExecutor("cpu", RealClock())
    started, go, over = threading.Event(), threading.Event(), threading.Event()
    asyncio.run(main())
    go.set()
    assert over.wait(30)
    device.close()


def test_the_hint_says_busy_only_while_work_runs():
    async def main():
        hints = []
        device = TimedExecutor({"forward": 1.0}, VirtualClock(), hints.append)
        await device.run("forward", lambda: hints.append("work"))
        return hints

    assert run_virtual(main()) == [True, "work", False]


class Held:
    """Three pieces of work on a device, of which no end is awaited; the first holds something big, the second waits."""

    def __init__(self, device):
        big, self.begun, self.go = threading.Thread(), threading.Event(), threading.Event()
        self.device, self.big, self._queued = device, weakref.ref(big), threading.Event()
        works = [lambda big=big: self._queued.wait(30), lambda: (self.begun.set(), self.go.wait(30)), lambda: 3]
        self.runs = [asyncio.ensure_future(device.run("forward", work, prompt=False)) for work in works]

    async def in_the_second(self):
        await asyncio.sleep(0)
        self._queued.set()
        assert await asyncio.to_thread(self.begun.wait, 30)


def on_held(scene):
    async def main():
        device = TorchExecutor("cpu", RealClock())
        held = Held(device)
        try:
            async with asyncio.timeout(20):
                await held.in_the_second()
                await scene(held)
        finally:
            held.go.set()
            device.close()

    asyncio.run(main())


def test_what_work_holds_is_free_at_its_end_even_if_the_end_is_noticed_later():
    async def scene(held):
        assert held.big() is None and not held.runs[0].done()
        held.go.set()
        assert [run[0] for run in await asyncio.gather(*held.runs)][::2] == [True, 3]

    on_held(scene)


def test_cancelling_the_work_that_waits_lets_the_work_before_it_return():
    """The end of the first was to be noticed with that of the second, as the third would keep the device busy."""

    async def scene(held):
        held.runs[2].cancel()
        await asyncio.wait(held.runs[::2])
        assert held.runs[0].result()[0] and held.runs[2].cancelled() and not held.runs[1].done()

    on_held(scene)


def test_cancelling_work_that_has_ended_unnoticed_does_not_wait():
    async def scene(held):
        held.runs[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await held.runs[0]
        assert not held.runs[1].done()

    on_held(scene)


@pytest.mark.parametrize("busy", [False, True])
def test_a_closed_device_refuses_all_further_work(busy):
    """The first refusal once left the queue in a state in which the second piece waited for ever."""

    async def scene(held):
        if not busy:
            held.go.set()
            await asyncio.gather(*held.runs)
        held.device.close()
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"device cpu is closed and takes no work \(op: backward\)"):
                await held.device.run("backward", lambda: None)

    on_held(scene)
