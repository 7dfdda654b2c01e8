"""A device does one computation at a time, off the loop, or only lets its time pass."""

import asyncio
import gc
import os
import threading
import weakref
from functools import partial

import pytest
import torch

from benchmarks.harness.timed_executor import TimedExecutor
from pipelined.actors.device.executor import TorchExecutor
from pipelined.actors.device.follower import FollowedWork
from pipelined.aio.clock import RealClock, VirtualClock, run_virtual
from pipelined.errors import OutOfMemory
from tests.conformance.worlds import local_world
from transports import Nursery


def test_a_timed_device_takes_what_each_op_takes_one_after_another():
    async def main():
        device = TimedExecutor({"forward": 1.0, "backward": 2.0}, VirtualClock())
        spans = await asyncio.gather(*(device.run(op, lambda op=op: op) for op in ("forward", "backward", "other")))
        return spans, device.busy

    spans, busy = run_virtual(main())
    assert spans == [("forward", 0.0, 1.0), ("backward", 1.0, 3.0), ("other", 3.0, 3.0)]
    assert busy == 3.0


def test_a_system_that_binds_no_process_to_cores_shares_all_of_them(monkeypatch):
    threads = []
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    TorchExecutor.of_rank(local_world(1, (0,))[0], ranks_sharing=2).close()
    assert threads == [3]


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


@pytest.mark.parametrize("work_first", [False, True])
def test_a_timed_device_names_the_work_for_which_there_is_no_memory_as_a_thread_does(work_first):
    def fails():
        raise MemoryError

    async def run():
        for executor in (TimedExecutor({}, RealClock(), work_first=work_first), TorchExecutor("cpu", RealClock())):
            executor.configure(name="attic", owner="stage 1", planned_memory=lambda: 3 << 20, remedy="rest")
            told = r"attic: stage 1: the update failed: MemoryError\(\) \(planned: 3.0 MiB, free on cpu: .*\); rest"
            with pytest.raises(OutOfMemory, match=f"^{told}$"):
                await executor.run("update", fails)
            executor.close()

    asyncio.run(run())


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
    """Three computations on a device, of which no end is awaited; the first holds something big, the second waits."""

    def __init__(self, device):
        big, self.begun, self.go = threading.Thread(), threading.Event(), threading.Event()
        self.device, self.big, self._queued = device, weakref.ref(big), threading.Event()
        works = [lambda big=big: self._queued.wait(30), lambda: (self.begun.set(), self.go.wait(30)), lambda: 3]
        self.runs = [asyncio.ensure_future(device.run("forward", work, report_at_once=False)) for work in works]

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
    """The first refusal once left the queue in a state in which the second computation waited for ever."""

    async def scene(held):
        if not busy:
            held.go.set()
            await asyncio.gather(*held.runs)
        held.device.close()
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"device cpu is closed \(new work: backward\)"):
                await held.device.run("backward", lambda: None)

    on_held(scene)


class Followed(FollowedWork):
    """A computation whose result goes to a function."""

    def __init__(self, op, function, finish=lambda *computed: None, **more):
        super().__init__(op, function, **more)
        self.finish = finish


class Begun:
    """Three computations that a nursery has begun; the first waits until it is let go."""

    def __init__(self, device, finish=lambda *computed: None):
        self.device, self.go, self.running, self.done = device, threading.Event(), threading.Event(), []
        self.finish = finish

    def first(self):
        self.running.set()
        self.go.wait()
        return self.note(0)

    def note(self, number):
        self.done.append(number)
        return number

    def submit(self, parent):
        for number, work in enumerate([self.first, lambda: self.note(1), lambda: self.note(2)]):
            self.device.submit(parent, Followed(f"computation {number}", work, self.finish))

    def note_ended(self, result, start, end):
        self.note(result)

    async def until_running(self):
        await asyncio.to_thread(self.running.wait)


def on_begun(scene, **more):
    async def main():
        device = TorchExecutor("cpu", RealClock())
        begun = Begun(device, **more)
        try:
            async with asyncio.timeout(60):
                return await scene(begun)
        finally:
            begun.go.set()
            device.close()

    return asyncio.run(main())


def test_a_nursery_waits_for_what_it_has_begun_and_one_task_follows_all_of_it():
    results = []

    async def scene(begun):
        async with Nursery() as parent:
            before = len(asyncio.all_tasks())
            begun.submit(parent)
            assert len(asyncio.all_tasks()) == before + 1
            begun.go.set()

    on_begun(scene, finish=lambda result, start, end: results.append((result, end >= start)))
    assert results == [(0, True), (1, True), (2, True)]


def test_what_was_begun_is_withdrawn_with_its_nursery_but_for_what_runs():
    async def scene(begun):
        async def parent():
            async with Nursery() as parent:
                begun.submit(parent)

        task = asyncio.create_task(parent())
        await begun.until_running()
        task.cancel()
        for _ in range(10):  # turns of the loop: the parent ends its children, and they withdraw what waits
            await asyncio.sleep(0)
        begun.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert begun.done == [0]
        assert (await begun.device.run("next", lambda: 7))[0] == 7, "the device takes work again"
        assert begun.done == [0]

    on_begun(scene)


@pytest.mark.parametrize("where", ["work", "finish"])
def test_an_error_of_what_was_begun_fails_its_nursery_although_the_block_waits(where):
    """A schedule that waits for a message would otherwise wait for ever."""

    def fail(*ended):
        raise ValueError(f"of the {where}")

    async def scene(begun):
        begun.go.set()
        with pytest.raises(ValueError, match=f"of the {where}"):
            async with Nursery() as parent:
                begun.device.submit(parent, Followed("computation", fail if where == "work" else lambda: 0, fail))
                await asyncio.Event().wait()

    on_begun(scene)


def test_what_is_begun_after_a_failure_is_not_done():
    async def scene(begun):
        async def fail():
            raise ValueError("first")

        with pytest.raises(ValueError, match="first"):
            async with Nursery() as parent:
                parent.create_task(fail())
                try:
                    await asyncio.Event().wait()
                finally:
                    begun.submit(parent)
                    begun.running.wait()  # on the loop: in a turn of it the first computation would be withdrawn, too
                    for _ in range(10):
                        await asyncio.sleep(0)
                    begun.go.set()
        await begun.device.run("next", lambda: 0)
        assert begun.done == [0]

    on_begun(scene)


def test_what_runs_on_when_its_nursery_has_ended_disturbs_no_other_work(monkeypatch):
    """Its error has no parent any more. Raised on the loop it would also hide the ends of work that ended with it."""
    monkeypatch.setattr("pipelined.actors.device.follower.PATIENCE_S", 0.0)
    calls, strange = [], []

    async def scene(begun):
        def fail():
            begun.first()
            raise ValueError("late")

        async def parent():
            async with Nursery() as parent:
                late = Followed("late", fail, lambda *ended: calls.append(ended), report_at_once=False)
                begun.device.submit(parent, late)

        asyncio.get_running_loop().set_exception_handler(lambda loop, context: strange.append(context))
        task = asyncio.create_task(parent())
        await begun.until_running()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        others = [asyncio.create_task(begun.device.run("other", lambda: 7)) for _ in range(2)]
        await asyncio.sleep(0)
        begun.go.set()
        assert [result for result, _, _ in await asyncio.gather(*others)] == [7, 7]

    on_begun(scene)
    assert calls == strange == []


@pytest.mark.parametrize("withdrawn", [True, False])
def test_nothing_keeps_what_was_begun_after_its_nursery(withdrawn):
    """Neither the message of a withdrawn computation, nor what is called at an end: it knows the weights."""

    async def scene(begun):
        held = [Begun(begun.device)]
        kept = weakref.ref(held[0])

        async def parent():
            async with Nursery() as parent:
                begun.device.submit(parent, Followed("first", begun.first))
                work = partial(begun.note, 1)
                second = Followed("second", work)
                if withdrawn:
                    second.function = work = held.pop().first
                else:
                    second.finish = held.pop().note_ended
                begun.device.submit(parent, second)
                del work, second

        task = asyncio.create_task(parent())
        await begun.until_running()
        if withdrawn:
            task.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
        begun.go.set()
        await asyncio.wait([task])
        assert kept() is None

    gc.disable()
    try:
        on_begun(scene)
    finally:
        gc.enable()
