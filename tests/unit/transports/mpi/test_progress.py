"""The progress engine: polls often when that helps, seldom when that matters, and no wait lasts for ever."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from transports.mpi.poll_loop import PollBackoff, SleepState
from transports.mpi.progress import ProgressEngine


class Library:
    """Requests that are done when the test says so, and a count of the tests of their state."""

    def __init__(self):
        self.outcomes, self.asked, self.receive_arrived = {}, 0, lambda: False

    def test(self, requests):
        self.asked += 1
        return [(n, self.outcomes.pop(request)) for n, request in enumerate(requests) if request in self.outcomes]


@asynccontextmanager
async def polling(backoff=PollBackoff(), announce_sleep=lambda state: None):  # noqa: B008 (frozen)
    """A running progress engine, and its library."""
    library = Library()
    engine = ProgressEngine(library.test, backoff, announce_sleep)
    async with asyncio.TaskGroup() as group:
        group.create_task(engine.run(library))
        yield engine, library
        engine.stop()


def test_naps_grow_with_the_quiet_up_to_the_longest():
    backoff = PollBackoff(spin_s=1e-3, min_nap_s=1e-4, max_nap_s=1e-3, computing_nap_s=2e-3, nap_fraction=1 / 8)
    naps = [backoff.nap(quiet, computing=False) for quiet in (0, 0.9e-3, 1e-3, 4e-3, 1.0)]
    assert naps == [0, 0, pytest.approx(1.25e-4), pytest.approx(5e-4), 1e-3]


def test_a_computing_rank_naps_between_polls():
    backoff = PollBackoff(spin_s=1e-3, computing_nap_s=2e-3, max_nap_s=1e-3)
    assert [backoff.nap(quiet, computing=True) for quiet in (0, 1.0)] == [2e-3, 2e-3]


def test_a_rank_with_doorbells_sleeps_after_quiet_time():
    backoff = PollBackoff(spin_s=1e-3, max_nap_s=1e-3, quiet_before_sleep_s=5e-3, sleep_s=1.0)
    assert [backoff.nap(quiet, computing=False, asleep=True) for quiet in (0, 4e-3, 6e-3)] == [0, 5e-4, 1.0]
    assert backoff.nap(6e-3, computing=True, asleep=True) == 1.0


async def test_the_receiver_is_polled_too_and_a_wake_ends_the_sleep():
    async with polling(PollBackoff(spin_s=0, quiet_before_sleep_s=0, sleep_s=1000)) as (engine, library):
        news, heard = [], asyncio.Event()

        def listen():
            if news:
                heard.set()
            return bool(news) and bool(news.pop())

        library.receive_arrived = listen
        engine.set_wakeable(True)
        await engine.next_poll()
        news.append("here")
        engine.wake()
        await heard.wait()


async def test_no_rank_sleeps_while_a_request_is_pending():
    async with polling(PollBackoff(spin_s=0, quiet_before_sleep_s=0, sleep_s=1000)) as (engine, library):
        engine.set_wakeable(True)
        waiting = engine.wait("slow")
        await engine.next_poll()
        await engine.next_poll()  # which would never come if it slept
        library.outcomes["slow"] = "done"
        assert await waiting == "done"


@pytest.mark.parametrize(
    ("ranks", "cores", "spins", "longest"),
    [(1, 2, True, 1e-3), (2, 2, True, 1e-3), (8, 2, False, 0.5e-3), (64, 2, False, 4e-3)],
)
def test_an_oversubscribed_node_naps_at_once_and_longer(ranks, cores, spins, longest):
    backoff = PollBackoff.on_node(ranks, cores)
    assert (backoff.nap(0, computing=False) == 0) is spins
    assert backoff.nap(100, computing=False) == longest


def test_an_urgent_wait_polls_without_naps_on_an_oversubscribed_node():
    backoff = PollBackoff.on_node(8, 2)
    assert backoff.nap(0.4e-3, computing=False, urgent=True) == 0
    assert backoff.nap(0.4e-3, computing=False) > 0
    assert backoff.nap(0.4e-3, computing=True, urgent=True) > 0
    assert backoff.nap(0.6e-3, computing=False, urgent=True) > 0


async def test_urgency_ends_with_the_wait():
    async with polling(PollBackoff(spin_s=0, urgent_spin_s=1000, min_nap_s=1000, max_nap_s=1000)) as (
        engine,
        library,
    ):
        urgent = [engine.wait(name, urgent=True) for name in "ab"]
        urgent[0].cancel()
        await engine.next_poll()
        asked = library.asked
        await engine.next_poll()
        assert library.asked > asked
        library.outcomes.update(a=1, b=2)
        await urgent[1]
        await asyncio.sleep(0)
        asked = library.asked
        for _ in range(10):
            await asyncio.sleep(0)
        assert library.asked <= asked + 1


def test_no_nap_exceeds_twenty_milliseconds():
    assert PollBackoff.on_node(1000, 1).nap(100, computing=False) == 20e-3


async def test_each_request_gets_its_own_outcome():
    async with polling() as (engine, library):
        futures = {name: engine.wait(name) for name in "abc"}
        library.outcomes.update(b=2, a=1)
        assert (await futures["b"], await futures["a"]) == (2, 1)
        assert engine.requests == ["c"]
        library.outcomes["c"] = ValueError("three")
        with pytest.raises(ValueError, match="three"):
            await futures["c"]


async def test_several_requests_are_done_when_all_are():
    async with polling() as (engine, library):
        together = engine.wait("a", "b", "c")
        library.outcomes.update(a=1, c=3)
        await engine.next_poll()
        assert not together.done()
        library.outcomes["b"] = 2
        assert await together == 2
        failing = engine.wait("d", "e")
        library.outcomes["d"] = ValueError("broken")
        await engine.next_poll()
        assert not failing.done()
        library.outcomes["e"] = 5
        with pytest.raises(ValueError, match="broken"):
            await failing
        assert await engine.wait() is None


async def test_a_cancelled_future_leaves_its_request_watched():
    async with polling() as (engine, library):
        done = []
        engine.wait("a", callback=done.append).cancel()
        await engine.next_poll()
        assert engine.requests == ["a"]
        library.outcomes["a"] = 1
        while engine.requests:
            await engine.next_poll()
        assert done == [1]


async def test_a_completion_may_watch_further_requests():
    async with polling() as (engine, library):
        heard = asyncio.get_running_loop().create_future()
        engine.watch("a", lambda outcome: engine.watch("b", heard.set_result))
        library.outcomes.update(a=1, b=2)
        assert await heard == 2


async def test_a_new_request_ends_a_nap():
    async with polling(PollBackoff(spin_s=0, min_nap_s=1000, max_nap_s=1000)) as (engine, library):
        await engine.next_poll()
        await asyncio.sleep(0)
        library.outcomes["a"] = 1
        assert await engine.wait("a") == 1


async def test_a_change_of_load_ends_a_nap():
    async with polling(PollBackoff(spin_s=0, min_nap_s=1000, max_nap_s=1000, computing_nap_s=1000)) as (
        engine,
        library,
    ):
        await engine.next_poll()
        await asyncio.sleep(0)
        asked = library.asked
        engine.watch("a", lambda outcome: None)
        await engine.next_poll()
        engine.set_computing(True)
        await engine.next_poll()
        assert library.asked >= asked + 2


async def test_after_a_failure_nothing_waits():
    async with polling() as (engine, _):
        before = engine.wait("a")
        turn = engine.next_poll()
        assert engine.fail(ValueError("broken")) == ["a"]
        engine.fail(ValueError("later"))
        await turn
        for future in (before, engine.wait("b")):
            with pytest.raises(ValueError, match="broken"):
                await future
        await engine.next_poll()
        assert str(engine.failure) == "broken"


async def test_waking_while_polling_does_not_multiply_the_polls():
    """Each wake that came from inside a poll once set a second timer beside the first, and polls grew without end."""

    async with polling(PollBackoff(spin_s=0, min_nap_s=1000, max_nap_s=1000)) as (engine, library):
        loop, timers = asyncio.get_running_loop(), []
        call_later = loop.call_later
        loop.call_later = lambda *args: timers.append(call_later(*args)) or timers[-1]
        for number in range(5):
            library.outcomes[number] = number
            await engine.wait(number, callback=lambda outcome: engine.wake())
            engine.wake()
            await engine.next_poll()
        assert sum(not timer.cancelled() for timer in timers) <= 1


async def test_a_waiting_task_may_poll_a_little_first():
    async with polling(PollBackoff(inline_spin_s=20)) as (engine, library):
        library.outcomes["a"] = 1
        future = engine.wait("a")
        assert engine.spin_until(lambda: future.result() if future.done() else None, with_polls=True) == 1


@pytest.mark.parametrize("why", ["oversubscribed", "computing", "busy"])
async def test_a_wait_does_not_poll_by_itself_where_others_need_the_time(why):
    async with polling(PollBackoff.on_node(4 if why == "oversubscribed" else 1, 2)) as (engine, library):
        engine.set_computing(why == "computing")
        for request in range(100 if why == "busy" else 1):
            engine.watch(request, lambda outcome: None)
        asked = library.asked
        assert engine.spin_until(lambda: "here", with_polls=True) == "here" and not engine.spin_until(
            lambda: None, with_polls=True
        )
        assert library.asked == asked


async def test_polling_for_something_ends():
    async with polling() as (engine, _):
        assert engine.spin_until(lambda: None, with_polls=True) is None


async def test_polling_while_the_loop_runs_ends_when_the_request_is_done():
    async with polling() as (engine, _):
        outcomes = {}
        asyncio.get_running_loop().call_soon(outcomes.update, {"a": "seen"})
        assert await engine.test_while("a", lambda: outcomes.get("a"), 1000) == "seen" and not engine.requests


@pytest.mark.parametrize(
    ("seconds", "computing", "looks"), [(1000, False, True), (1000, True, False), (0.0, False, False)]
)
async def test_a_request_is_polled_while_there_is_time_and_this_rank_does_not_compute(seconds, computing, looks):
    looked = []
    engine = ProgressEngine(Library().test, PollBackoff())  # it does not run, so only `test_while` looks
    engine.set_computing(computing)
    waiting = asyncio.create_task(engine.test_while("a", lambda: looked.append("a"), seconds))
    for _ in range(5):
        await asyncio.sleep(0)
    assert bool(looked) == looks
    waiting.cancel()
    await asyncio.wait([waiting])


@pytest.mark.parametrize("by_poll", [True, False])
async def test_a_failure_is_raised_in_the_task_that_polls_the_request(by_poll):
    async with polling() as (engine, library):
        broken = ValueError("broken")
        if by_poll:
            library.outcomes["a"] = broken
        with pytest.raises(ValueError, match="broken"):
            await engine.test_while("a", lambda: None if by_poll else broken, 1000)
        assert not engine.requests


async def test_a_cancelled_poll_leaves_the_request_watched():
    async with polling() as (engine, library):
        waiting = asyncio.create_task(engine.test_while("a", lambda: None, 1000))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert engine.requests == ["a"]
        library.outcomes["a"] = "late"
        await engine.next_poll()
        assert not engine.requests


async def test_one_request_may_be_looked_at_without_being_watched():
    async with polling() as (engine, _):
        answers = iter([None, None, "done"])
        assert engine.spin_until(lambda: next(answers)) == "done" and not engine.requests
        assert engine.spin_until(lambda: None) is None
        engine.set_computing(True)
        answers = iter([None, "too late"])
        assert engine.spin_until(lambda: next(answers)) is None


async def test_a_rank_polls_once_more_after_announcing_sleep():
    """A sender that still saw it awake did not ring; this poll receives its message."""
    said = []

    async with polling(PollBackoff(spin_s=0, min_nap_s=1000, max_nap_s=1000), said.append) as (_, library):
        library.receive_arrived = lambda: said.append("poll")
        for _ in range(20):
            await asyncio.sleep(0)
        assert said[said.index(SleepState.IDLE) :] == [SleepState.IDLE, "poll"]


async def test_a_rank_announces_its_sleep_state():
    said = []

    async with polling(PollBackoff(spin_s=0, min_nap_s=1000, max_nap_s=1000, computing_nap_s=1000), said.append) as (
        engine,
        _,
    ):
        for busy in (False, True, False):
            engine.set_computing(busy)
            for _ in range(5):
                await asyncio.sleep(0)
    assert said == [SleepState.IDLE, SleepState.COMPUTING, SleepState.IDLE]


async def test_woken_tasks_run_before_the_timer_is_armed():
    said = []

    async with polling(PollBackoff(spin_s=0, min_nap_s=1000, max_nap_s=1000), said.append) as (engine, library):
        waiting = engine.wait("a")
        waiting.add_done_callback(lambda future: said.append("goes on"))
        library.outcomes["a"] = 1
        await waiting
        await engine.next_poll()
    assert said[0] == "goes on"


async def test_a_ring_starts_polling_without_naps_on_an_oversubscribed_node():
    said, news = [], []

    async def turns(number):
        for _ in range(number):
            await asyncio.sleep(0)

    async with polling(PollBackoff(spin_s=0, urgent_spin_s=1000, min_nap_s=1000, max_nap_s=1000), said.append) as (
        engine,
        library,
    ):
        library.receive_arrived = lambda: bool(news) and bool(news.pop())
        await turns(5)
        engine.on_doorbell()
        asked = len(said)
        await turns(20)
        assert len(said) == asked, "the doorbell woke it, and it stayed awake"
        news.append("here")
        await turns(5)
        assert said[asked:] == [SleepState.IDLE]


async def test_a_ring_is_answered_by_a_poll_right_there_but_not_before_there_are_any():
    library = Library()
    engine = ProgressEngine(library.test, PollBackoff(spin_s=0, min_nap_s=1000, max_nap_s=1000))
    waiting = engine.wait("a")
    engine.on_doorbell()
    assert library.asked == 0
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(engine.run())
        await engine.next_poll()
        library.outcomes["a"] = "done"
        engine.on_doorbell()
        assert waiting.result() == "done"
        engine.stop()
