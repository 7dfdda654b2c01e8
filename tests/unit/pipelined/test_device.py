"""A device does one piece of work at a time, off the loop, or only lets its time pass."""

import asyncio
import threading

import pytest

from pipelined.clock import RealClock, VirtualClock, run_virtual
from pipelined.device import TimedDevice, TorchDevice


def test_a_timed_device_takes_what_each_op_takes_one_after_another():
    async def main():
        device = TimedDevice({"forward": 1.0, "backward": 2.0}, VirtualClock())
        spans = await asyncio.gather(*(device.run(op, lambda op=op: op) for op in ("forward", "backward", "other")))
        return spans, device.busy

    spans, busy = run_virtual(main())
    assert spans == [("forward", 0.0, 1.0), ("backward", 1.0, 3.0), ("other", 3.0, 3.0)]
    assert busy == 3.0


def test_torch_work_leaves_the_loop_free():
    """The work waits for something that only the loop can do: on the loop's own thread it would never end."""

    async def main():
        device = TorchDevice("cpu", RealClock())
        go = threading.Event()
        asyncio.get_running_loop().call_soon(go.set)
        try:
            return await device.run("forward", lambda: go.wait(30))
        finally:
            device.close()

    assert asyncio.run(main())[0] is True


def test_cancelled_work_is_finished_before_the_cancellation_passes():
    async def main():
        device, done = TorchDevice("cpu", RealClock()), []
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


def test_the_hint_says_busy_only_while_work_runs():
    async def main():
        hints = []
        device = TimedDevice({"forward": 1.0}, VirtualClock(), hints.append)
        await device.run("forward", lambda: hints.append("work"))
        return hints

    assert run_virtual(main()) == [True, "work", False]
