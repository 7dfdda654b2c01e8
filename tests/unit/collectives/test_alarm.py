"""When a group's alarm rings, on a loop whose time stands still unless told to go on."""

import asyncio

import pytest

from collectives._alarm import Alarm


class Standing(asyncio.SelectorEventLoop):
    """A loop with a time of its own, that counts its timers."""

    now, timers = 100.0, 0

    def time(self):
        return self.now

    def call_at(self, when, callback, *args, **kwargs):
        self.timers += 1
        return super().call_at(when, callback, *args, **kwargs)

    async def goes_on(self, seconds):
        """Let time pass, and whatever is due happen."""
        self.now += seconds
        for _ in range(3):
            await asyncio.sleep(0)


def on_a_standing_loop(story):
    """Run a story that takes the loop, an alarm with a patience of 10 s, and the rings so far."""

    async def main():
        rings = []
        await story(asyncio.get_running_loop(), Alarm(10.0), rings)

    with asyncio.Runner(loop_factory=Standing) as runner:
        runner.run(main())


def test_it_rings_once_when_the_patience_is_over():
    async def story(loop, alarm, rings):
        alarm.begin(lambda: rings.append(loop.now))
        await loop.goes_on(9)
        assert not rings
        await loop.goes_on(2)
        await loop.goes_on(50)
        assert rings == [111]

    on_a_standing_loop(story)


def test_it_is_silent_for_what_ended_in_time():
    async def story(loop, alarm, rings):
        alarm.begin(lambda: rings.append("ended"))
        alarm.end()
        await loop.goes_on(50)
        assert not rings

    on_a_standing_loop(story)


@pytest.mark.parametrize("later", [1, 6, 9])
def test_whoever_comes_later_has_the_whole_patience(later):
    async def story(loop, alarm, rings):
        alarm.begin(lambda: rings.append("first"))
        alarm.end()
        await loop.goes_on(later)
        alarm.begin(lambda: rings.append(loop.now))
        await loop.goes_on(9)
        assert not rings
        await loop.goes_on(2)
        assert rings == [111 + later]

    on_a_standing_loop(story)


def test_many_that_end_in_time_cost_one_timer():
    async def story(loop, alarm, rings):
        for _ in range(1000):
            alarm.begin(lambda: rings.append("late"))
            alarm.end()
        assert loop.timers == 1
        await loop.goes_on(50)
        alarm.begin(lambda: rings.append("late"))
        assert loop.timers == 2

    on_a_standing_loop(story)
