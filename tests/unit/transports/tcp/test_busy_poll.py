"""Staying awake, on a loop of the test's own: when it goes to sleep, to the turn."""

import asyncio
import selectors

import pytest

from tests.conformance.worlds import tcp_world
from transports.stream.writer import CACHED_CHUNK, LONG_BYTES
from transports.tcp.transport import BUSY_LOOP_S, BusyPoll

YIELD_AFTER_S = BUSY_LOOP_S / 20


class Loop(asyncio.SelectorEventLoop):
    """Each turn takes as long as any other; a sleep lasts until the next timer."""

    def __init__(self):
        self.now, self.fell_asleep = 0.0, []
        super().__init__(Look(self))

    def time(self):
        return self.now


class Look(selectors.SelectSelector):
    def __init__(self, loop):
        super().__init__()
        self._loop = loop

    def select(self, timeout=None):
        if timeout:
            self._loop.fell_asleep.append(self._loop.now)
        self._loop.now += timeout or YIELD_AFTER_S
        return super().select(0)


def falls_asleep(waiting, core_per_rank=True):
    """The moment at which the loop of a rank that does this first falls asleep, or None."""

    async def main():
        loop = asyncio.get_running_loop()
        busy_poll = BusyPoll(core_per_rank)
        begun = loop.now
        await waiting(busy_poll)
        timer = loop.create_future()
        loop.call_later(1.0, timer.set_result, None)  # on the loop's own time: what it sleeps until
        await timer
        return loop.fell_asleep[0] - begun

    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(main())


async def begin(busy_poll):
    busy_poll.start()


async def begin_twice(busy_poll):
    busy_poll.start()
    for _ in range(10):
        await asyncio.sleep(0)
    busy_poll.start()


async def begin_while_computing(busy_poll):
    busy_poll.set_computing(True)
    busy_poll.start()


async def begin_to_compute(busy_poll):
    busy_poll.start()
    busy_poll.set_computing(True)


async def compute_no_more(busy_poll):
    busy_poll.set_computing(True)
    busy_poll.set_computing(False)
    busy_poll.start()


@pytest.mark.parametrize(
    ("waiting", "awake"),
    [
        (begin, BUSY_LOOP_S),
        (begin_twice, BUSY_LOOP_S + 10 * YIELD_AFTER_S),
        (begin_while_computing, 0.0),
        (begin_to_compute, 0.0),
        (compute_no_more, BUSY_LOOP_S),
    ],
)
def test_a_waiting_rank_stays_awake_for_a_moment_unless_it_computes(waiting, awake):
    assert falls_asleep(waiting) == pytest.approx(awake, abs=2 * YIELD_AFTER_S)


def test_no_rank_stays_awake_if_ranks_outnumber_cores():
    assert falls_asleep(begin, core_per_rank=False) == pytest.approx(0.0, abs=2 * YIELD_AFTER_S)


@pytest.mark.parametrize(
    ("cores", "machines", "roomy", "cached"),
    [(3, "aaa", True, True), (2, "aaa", False, False), (2, "aab", True, True), (2, "abc", True, False)],
)
async def test_ranks_with_a_core_each_stay_awake_and_write_what_fits_the_cache(
    monkeypatch, cores, machines, roomy, cached
):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(cores)))

    ends = await tcp_world(3, machines=machines)
    assert (ends[0]._busy_poll._seconds > 0) == roomy
    assert [end._peers[0].connection._queue._chunk for end in ends[1:]] == [
        CACHED_CHUNK if cached and machine == "a" else LONG_BYTES for machine in machines[1:]
    ]
    await asyncio.gather(*(end.close() for end in ends))
