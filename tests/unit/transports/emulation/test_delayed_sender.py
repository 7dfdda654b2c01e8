"""The delayed sender on a clock of the test's own: deliveries that are late again and again begin that much earlier."""

import asyncio

import pytest

from transports.emulation.delayed_sender import MAX_LATENESS_S, DelayedSender
from transports.emulation.link_timing import LinkTiming
from transports.emulation.options import LinkProfile

DELAY = 5e-3


class Clock(asyncio.SelectorEventLoop):
    """Time stands still until the next timer, which fires late by so much, or until a test advances it."""

    def __init__(self, late):
        super().__init__()
        self.now, self._late = 100.0, late

    def time(self):
        return self.now

    def call_at(self, when, callback, *args, context=None):
        def ring():
            self.now = max(self.now, when + self._late)
            callback(*args)

        return self.call_soon(ring, context=context)


def arrivals(messages, late=0.0, carry=None):
    """How much later than its delay each of so many messages, one after another, was handed over."""
    delays = []

    async def main():
        loop = asyncio.get_running_loop()

        async def hand_over(blocks):
            await (carry(loop) if carry else asyncio.sleep(0))
            delays.append(loop.time() - sent - DELAY)

        sender = DelayedSender(LinkTiming(LinkProfile(delay=DELAY), (0, 1)), 1 << 20, 0.0, pytest.fail)
        for _ in range(messages):
            sent = loop.time()
            await sender.send(sent, [], 0, hand_over)
            await sender.wait_drained()
            await sender.wait_ended()

    with asyncio.Runner(loop_factory=lambda: Clock(late)) as runner:
        runner.run(main())
    return delays


async def spending(seconds, loop):
    loop.now += seconds


@pytest.mark.parametrize("late", [0.0, 50e-6, 400e-6])
def test_timers_that_ring_late_are_set_earlier(late):
    first, *_, last = arrivals(40, late)
    assert (first, last) == pytest.approx((late, 0.0), abs=2e-6)


@pytest.mark.parametrize("cost", [100e-6, 400e-6])
def test_a_send_that_does_not_wait_is_begun_earlier_by_what_it_takes_here_and_the_receiver_there(cost):
    first, *_, last = arrivals(40, carry=lambda loop: spending(cost, loop))
    assert (first, last) == pytest.approx((cost, -cost), abs=2e-6)


def test_a_late_receive_does_not_change_the_correction():
    async def waiting(loop):
        await asyncio.sleep(0)
        await spending(400e-6, loop)

    assert arrivals(40, carry=waiting) == pytest.approx([400e-6] * 40, abs=2e-6)


def test_no_message_is_begun_much_earlier_than_due():
    assert arrivals(40, carry=lambda loop: spending(0.1, loop))[-1] == pytest.approx(0.1 - MAX_LATENESS_S, abs=2e-6)
