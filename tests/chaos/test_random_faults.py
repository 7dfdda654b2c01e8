"""Parties of a virtual network ask one another under random faults; what is promised of asks holds for every seed."""

import asyncio
import random
from collections import Counter
from itertools import permutations

import pytest

from pipelined.aio.clock import run_virtual
from tests.virtual_time import virtual_seconds
from transports.rpc import Rejected, Response, Unreachable
from transports.rpc.virtual.network import VirtualNetwork

NAMES = "abcd"
STEPS = 60
SEEDS = range(60)


class Story:
    """One seeded run of four parties that send requests, and of the faults that end them.

    Attributes:
        handled: (asker, answerer, number) in the order in which handlers began; parties with their incarnations.
        outcomes: what became of each question, by the same name, as far as its asker knows.
    """

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.network = VirtualNetwork(seed, delay=0.01, jitter=0.008)
        self.ends, self.handled, self.outcomes, self.asks, self.lines = {}, [], {}, [], []
        self.network.intercept(lambda passing: self.lines.append(str(passing)))
        for name in NAMES:
            self.open(name)

    def open(self, name):
        end = self.ends[name] = self.network.endpoint(name)

        async def work(request):
            self.handled.append((request.sender, (end.address, end.incarnation), request.note))
            if request.note % 5 == 0:
                raise Rejected("no", number=request.note)
            await self.network.clock(name).sleep(request.note % 3 * 0.01)
            return Response(note=request.note)

        end.handle("work", work, max_waiting=1000)

    async def request(self, name, other, number):
        end = self.ends[name]
        asked = (end.address, end.incarnation), other, number
        try:
            self.outcomes[asked] = (await end.request(f"virtual://{other}", "work", note=number)).note
        except Rejected as rejection:
            assert rejection.facts == {"number": number}
            self.outcomes[asked] = "refused"
        except Unreachable as error:
            self.outcomes[asked] = "unsent" if not error.sent else "lost"

    def fault(self):
        """Apply a random fault to a random party."""
        one, other = self.random.sample(NAMES, 2)
        network = self.network
        match self.random.randrange(8):
            case 0 if self.ends[one].closed:
                self.open(one)
            case 0:
                network.kill(one)
            case 1:
                network.freeze(one)
            case 2:
                network.thaw(one)
            case 3:
                network.cut(one, other)
            case 4:
                network.cut_off(one)
            case 5:
                network.heal(one)
            case 6:
                network.heal(one, other)
            case 7:
                network.reset(one, other)

    async def live(self):
        for step in range(STEPS):
            for _ in range(self.random.randrange(6)):
                name, other = self.random.choice(NAMES), self.random.choice(NAMES)
                self.asks.append(asyncio.create_task(self.request(name, other, len(self.asks))))
            await virtual_seconds(self.random.random() * 0.01)
            if step % 3 == 0:
                self.fault()
        self.mend()
        await asyncio.gather(*self.asks)  # a wait without end would be a deadlock of the clock
        for end in self.ends.values():
            assert not end.failed.done() and not end.invalid_input
            await end.close()

    def mend(self):
        for name in NAMES:
            self.network.thaw(name)
            self.network.heal(name)
        for pair in permutations(NAMES, 2):
            self.network.heal(*pair)


def told(seed):
    async def main():
        story = Story(seed)
        await story.live()
        return story

    return run_virtual(main())


@pytest.fixture(scope="module")
def stories():
    return [told(seed) for seed in SEEDS]


def test_every_ask_ends_and_all_kinds_of_ends_come_about(stories):
    ends = [outcome for story in stories for outcome in story.outcomes.values()]
    assert len(ends) == sum(len(story.asks) for story in stories)
    kinds = Counter(end if isinstance(end, str) else "answered" for end in ends)
    assert len(kinds) == 4 and min(kinds.values()) > 5 * len(SEEDS), kinds


def test_no_question_is_handled_twice(stories):
    for story in stories:
        numbers = [number for _, _, number in story.handled]
        assert len(numbers) == len(set(numbers))


def test_what_was_answered_was_handled_and_what_was_unsent_was_not(stories):
    for story in stories:
        handled = {number for _, _, number in story.handled}
        for (_, _, number), outcome in story.outcomes.items():
            if outcome == "unsent":
                assert number not in handled
            elif outcome != "lost":
                assert number in handled and outcome in (number, "refused")


def test_requests_between_two_incarnations_are_handled_in_order(stories):
    for story in stories:
        ways = {(asker, answerer) for asker, answerer, _ in story.handled}
        for way in ways:
            numbers = [number for asker, answerer, number in story.handled if (asker, answerer) == way]
            assert numbers == sorted(numbers)


def test_a_seed_repeats_its_story(stories):
    assert told(SEEDS[7]).lines == stories[7].lines
