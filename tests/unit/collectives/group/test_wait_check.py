"""A rank that waits long sends its call to the first rank; the first rank compares, and leaves no message behind."""

import asyncio
import gc
import inspect
import weakref
from functools import partial

import numpy as np
import pytest

from collectives import Group, Mismatch, Signature, all_reduce
from collectives.group.wait_check import STALL_S
from pipelined.aio.clock import VirtualClock, run_virtual
from tests.conformance.worlds import endpoint_world, local_world, tcp_world
from tests.unit.collectives.owned import owned
from transports import PeerAborted, new_event_loop
from transports.emulation.options import LinkProfile
from transports.emulation.transport import SlowTransport
from transports.rpc import Response

TURNS = 20  # of the loop: enough for a rank that waits to send its call


def run(main):
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(asyncio.wait_for(main(), 30))


async def late_sum(groups):
    """One sum that the first rank enters after every other rank has sent it its call."""
    sums = [asyncio.ensure_future(all_reduce(group, np.ones(4), "sum", "ring")) for group in groups[1:]]
    for _ in range(TURNS):
        await asyncio.sleep(0)
    async with asyncio.TaskGroup() as tasks:
        for group in groups[1:]:  # what a rank sends arrives in order, so its call arrives before this
            tasks.create_task(group.transport.send(0, ("its call has arrived",)))
            await groups[0].transport.receive(group.rank, ("its call has arrived",))
    key = groups[0].calls.wait_check._key
    assert all(groups[0].transport.probe(group.rank, key) for group in groups[1:])
    await asyncio.gather(all_reduce(groups[0], np.ones(4), "sum", "ring"), *sums)
    assert not groups[0].transport.probe(None, key), "a message was left behind"


@pytest.mark.parametrize("scheme", ["local", "tcp"])
def test_no_message_is_left_after_sums_that_the_first_rank_enters_last(scheme):
    async def main():
        ends = {"local": local_world, "tcp": tcp_world}[scheme](3)
        ends = await ends if inspect.isawaitable(ends) else ends
        groups = [Group(end, range(3), 1, patience=0.0 if end.rank else 60.0) for end in ends]
        for _ in range(5):
            await late_sum(groups)
        assert sorted(groups[0].calls.wait_check._latest_notes) == [1, 2]
        for end in ends:
            await end.close()

    run(main)


def test_over_tcp_late_sums_take_no_credit_from_later_messages():
    """A message that fits the credit is sent before its receiver asks, however many sums came before."""

    async def main():
        ends = await tcp_world(2, max_kept=64 << 10)
        groups = [Group(end, range(2), 1, patience=0.0 if end.rank else 60.0) for end in ends]
        for _ in range(40):
            await late_sum(groups)
        await asyncio.wait_for(ends[1].send(0, ("activation",), bytes(1000)), 5)
        await ends[0].receive(1, ("activation",))
        for end in ends:
            await end.close()

    run(main)


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_ranks_that_wait_for_one_another_in_unequal_calls_end(odd):
    """One of them waits at a meeting in shared memory, where no bytes come that would tell what the others call."""

    async def main():
        ends = local_world(3, shared_memory=True)
        groups = [Group(end, range(3), 1, patience=0.0) for end in ends]
        names = ["shared" if rank == odd else "ring" for rank in range(3)]
        calls = [asyncio.ensure_future(all_reduce(groups[rank], np.ones(4), "sum", names[rank])) for rank in range(3)]
        with pytest.raises(Mismatch, match=r"rank 0: all_reduce by (shared|ring): .*rank [12]: all_reduce by"):
            await calls[0]
        await ends[0].abort("as the owner of rank 0 does")
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(error, Mismatch | PeerAborted) for error in ended)

    run(main)


async def never(ends, rank):
    await ends[rank].receive(None, ("what no rank sends",))


async def local(world_size):
    return local_world(world_size)


async def in_calls(numbers, late=0.0, ready=never, opened=local):
    """Ranks that wait in calls of these numbers, rank 0 for so many seconds more; what each call ended with."""
    ends = await opened(len(numbers))
    groups = [Group(end, range(len(numbers)), 1) for end in ends]

    async def rank(group, number):
        for _ in range(number - 1):
            async with group.call(Signature("broadcast")):
                pass
        await VirtualClock().sleep(0.0 if group.rank else late)
        async with group.call(Signature("barrier" if number == 1 else "sum")):
            await ready(ends, group.rank)

    calls = [asyncio.ensure_future(owned(end, rank(*each))) for end, *each in zip(ends, groups, numbers, strict=True)]
    await asyncio.wait(calls, timeout=1000)
    return [task.exception() if task.done() else task.cancel() for task in calls]


@pytest.mark.parametrize("late", [0.0, 25.0])
@pytest.mark.parametrize("numbers", [(1, 2), (2, 1), (2, 2, 1), (1, 2, 3)])
def test_ranks_that_wait_in_calls_of_different_numbers_end_and_name_both(numbers, late):
    first, *others = run_virtual(in_calls(numbers, late))
    assert isinstance(first, Mismatch) and all(isinstance(error, PeerAborted) for error in others)
    names = {1: "call 1, barrier", 2: "call 2, sum", 3: "call 3, sum"}
    other = next(number for number in numbers if number != numbers[0])
    for error in (first, *others):
        assert names[numbers[0]] in str(error) and names[other] in str(error) and "equally often" in str(error)


async def with_heartbeats(world_size):
    """A world between endpoints, each of which also sends an array to every other one each second."""
    ends = await endpoint_world(world_size)
    endpoints = [end._world.endpoint for end in ends]

    async def beat(endpoint):
        while True:
            await VirtualClock().sleep(1.0)
            for other in endpoints:
                await endpoint.request(other.address, "heartbeat", np.zeros(8))

    async def reply(request):
        return Response()

    for endpoint in endpoints:
        endpoint.handle("heartbeat", reply, max_bytes=64)
    ends[0].heartbeats = [asyncio.ensure_future(beat(endpoint)) for endpoint in endpoints]
    return ends


def test_other_requests_of_their_endpoints_do_not_keep_ranks_in_calls_of_different_numbers_waiting():
    first, *others = run_virtual(in_calls((1, 2, 3), opened=with_heartbeats))
    assert isinstance(first, Mismatch) and all(isinstance(error, PeerAborted) for error in others)


@pytest.mark.parametrize("opened", [local, endpoint_world])
def test_ranks_in_calls_of_different_numbers_go_on_while_one_receives(opened):
    """Rank 0 takes a long message in pieces for three minutes; its sender is in the next call already."""

    async def receives(ends, rank):
        if rank == 1:
            for _ in range(20):
                await VirtualClock().sleep(9)
                await ends[1].send_buffer(0, 5, memoryview(b"piece"))
        for _ in range(0 if rank else 20):
            await ends[0].receive_buffer(1, 5, memoryview(bytearray(5)))

    assert run_virtual(in_calls((1, 2), ready=receives, opened=opened)) == [None, None]


SLOW = 0.1e6 / 8


async def behind_slow_links(world_size):
    return [SlowTransport(end, LinkProfile(rate=SLOW)) for end in local_world(world_size)]


@pytest.mark.parametrize("opened", [behind_slow_links, partial(endpoint_world, rate=SLOW)], ids=["local", "endpoints"])
def test_ranks_in_calls_of_different_numbers_go_on_while_a_long_message_is_on_a_slow_link(opened):
    """Rank 1 takes one message of 4 MiB over 0.1 Mbit/s, for six minutes; the others are in the next call already."""

    async def receives(ends, rank):
        if rank == 2:
            await ends[2].send(1, ("long",), np.zeros(4 << 20, np.uint8))
        if rank != 1:
            await ends[rank].receive(1, ("answer",))
        else:
            await ends[1].receive(2, ("long",))
            await ends[1].send(0, ("answer",))
            await ends[1].send(2, ("answer",))

    assert run_virtual(in_calls((2, 1, 2), ready=receives, opened=opened)) == [None, None, None]


def test_over_tcp_a_message_that_is_not_whole_yet_is_progress():
    async def main():
        one, two = await tcp_world(2)
        receiving = asyncio.ensure_future(two.receive(0, ("long",)))
        sending = asyncio.ensure_future(one.send(1, ("long",), np.zeros(64 << 20, np.uint8)))
        values = set()
        while not receiving.done():
            await asyncio.sleep(0)
            values.add(two.activity)
        await asyncio.gather(sending, receiving)
        assert len(values) > 3 and two.activity == 64 << 20
        for end in (one, two):
            await end.close()

    run(main)


@pytest.mark.parametrize("third", [(), (300,)], ids=["has called nothing", "has ended the call of which it sent word"])
def test_ranks_in_calls_of_different_numbers_wait_for_one_that_is_late(third):
    """Ranks 0 and 1 wait in calls 1 and 2 at the same time for 300 s; rank 2 computes and will then call both."""

    async def main():
        ends, clock = local_world(3), VirtualClock()
        groups = [Group(end, range(3), 1) for end in ends]

        async def calls(group, *seconds):
            for duration in seconds:
                async with group.call(Signature("broadcast")):
                    await clock.sleep(duration)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(calls(groups[2], *third))
            tasks.create_task(calls(groups[1], 0, 600))
            await clock.sleep(290)
            tasks.create_task(calls(groups[0], 300))

    run_virtual(main())


class Waits:
    """A call of the first rank that waits for ever, while another rank's call of the same number differs."""

    def __init__(self):
        self.group = Group(local_world(2)[0], range(2), 1, patience=0.0)
        self.group.calls.wait_check._latest_notes[1] = [1, "barrier", "barrier", 0]

    async def call(self):
        async with self.group.call(Signature("broadcast")):
            await asyncio.get_running_loop().create_future()


def test_a_cancellation_from_outside_is_not_taken_for_the_watchdogs():
    async def main():
        waits = Waits()
        task = asyncio.ensure_future(waits.call())
        compare = waits.group.calls.wait_check._find_mismatch
        waits.group.calls.wait_check._find_mismatch = lambda call: task.cancel() and compare(call)
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main)


def test_a_mismatch_does_not_leave_its_task_cancelled():
    async def main():
        with pytest.raises(Mismatch, match=r"broadcast.*barrier"):
            await Waits().call()
        assert not asyncio.current_task().cancelling()
        await asyncio.sleep(0)

    run(main)


@pytest.mark.parametrize("note", [None, 7, [1], [1, 2, 3], ["1", "barrier", "barrier", 0], {"a": 1}])
def test_a_malformed_report_is_ignored(note):
    async def main():
        waits = Waits()
        waits.group.calls.wait_check._latest_notes[1] = note
        task = asyncio.ensure_future(waits.call())
        await VirtualClock().sleep(3 * STALL_S)
        assert not task.done() and 0 in waits.group.calls.wait_check._latest_notes, "it has compared the calls"
        task.cancel()
        await asyncio.wait([task])

    run_virtual(main())


def test_no_call_is_reported_before_its_whole_patience():
    """Calls of 9 s and 9.9 s in a row send nothing, though the timer was set in the first; one of 10.1 s does."""
    ends, clock = local_world(2), VirtualClock()

    async def main():
        group, told = Group(ends[1], range(2), 1), []
        for seconds in (9.0, 9.9, 10.1):
            async with group.call(Signature("barrier")):
                await clock.sleep(seconds)
            told.append(ends[0].probe(1, group.calls.wait_check._key))
        return told

    assert run_virtual(main()) == [False, False, True]


def test_after_a_failed_call_no_timer_keeps_the_transport():
    """Its error has the frames of the call, and with them what was summed: of a lost cluster, a copy of a stage."""

    async def main():
        ends = local_world(2)
        group = Group(ends[0], range(2), 1, patience=60.0)
        sums = asyncio.ensure_future(all_reduce(group, np.ones(4), "sum", "ring"))
        for _ in range(TURNS):
            await asyncio.sleep(0)
        await ends[1].abort("it failed")
        with pytest.raises(PeerAborted):
            await sums
        await asyncio.gather(*(end.close() for end in ends), return_exceptions=True)
        return weakref.ref(ends[0])

    async def kept():
        end = await main()
        gc.collect()
        return end()

    assert run(kept) is None
