"""When things arrive that share a party's line, beside what pencil and paper say."""

import asyncio

import pytest

from pipelined.aio.clock import run_virtual
from transports.emulation.in_flight_queue import AccessLine, InFlightQueue
from transports.emulation.link_timing import LinkTiming
from transports.emulation.options import LinkProfile

DELAY = 0.5


def ways(ends, lines):
    """One way for each pair of ends, with the lines of those that have one."""
    return {
        (source, target): InFlightQueue(
            LinkTiming(LinkProfile(DELAY), (source, target)),
            up=lines.get((source, "up")),
            down=lines.get((target, "down")),
        )
        for source, target in ends
    }


def arrivals(lines, *sent):
    """What is sent (when, from, to, bytes) and when each of it arrives."""

    async def play():
        loop = asyncio.get_running_loop()
        came = [loop.create_future() for _ in sent]
        over = ways({(source, target) for _, source, target, _ in sent}, lines)
        for arrived, (when, source, target, nbytes) in zip(came, sent, strict=True):
            note = lambda arrived=arrived: arrived.set_result(loop.time())  # noqa: E731
            loop.call_at(when, over[source, target].send, nbytes, note)
        return list(await asyncio.gather(*came))

    return run_virtual(play())


@pytest.mark.parametrize(
    "up, down, seconds", [(10, 10, 1.0), (10, None, 1.0), (None, 10, 1.0), (10, 5, 2.0), (5, 10, 2.0)]
)
def test_what_goes_up_one_line_and_down_another_takes_the_time_of_the_slower(up, down, seconds):
    lines = {("a", "up"): up and AccessLine(up), ("b", "down"): down and AccessLine(down)}
    assert arrivals(lines, (0.0, "a", "b", 10)) == [DELAY + seconds]


def test_one_line_up_carries_what_goes_to_several_one_after_another():
    lines = {("a", "up"): AccessLine(10)}
    assert arrivals(lines, (0.0, "a", "b", 10), (0.0, "a", "c", 20), (5.0, "a", "b", 10)) == [1.5, 3.5, 6.5]


def test_one_line_down_carries_what_comes_from_several_one_after_another():
    lines = {("c", "down"): AccessLine(10)}
    assert arrivals(lines, (0.0, "a", "c", 10), (0.25, "b", "c", 10), (0.5, "a", "c", 10)) == [1.5, 2.5, 3.5]


def test_short_frames_pass_a_long_one_on_the_receivers_line():
    lines = {("a", "up"): AccessLine(1), ("c", "down"): AccessLine(10)}
    assert arrivals(lines, (0.0, "a", "c", 8), (1.0, "b", "c", 10)) == [8.5, 2.5]


def test_a_line_that_is_full_is_never_idle():
    lines = {("c", "down"): AccessLine(10)}
    sent = [(at / 8, "ab"[at % 2], "c", 5) for at in range(40)]
    assert max(arrivals(lines, *sent)) == DELAY + 40 * 0.5
