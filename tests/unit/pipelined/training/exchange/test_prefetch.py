"""Messages are asked for a few ahead of their turn, and never more."""

import asyncio

from pipelined.actors.actor import Actor
from pipelined.training.exchange.prefetch import Prefetcher
from transports.local import world


class Asked(Actor):
    """An actor that notes what it was asked to receive."""

    def __init__(self, transport):
        super().__init__(transport)
        self.asked = []

    async def receive(self, peer, key):
        self.asked.append(key[1])
        return await super().receive(peer, key)


async def test_only_the_next_few_are_requested():
    sender_end, receiver_end = world(2)
    seen = []
    async with Actor(sender_end) as teller, Asked(receiver_end) as listener:
        for number in range(5):
            teller.tell(1, ("x", number), bytes([number]))
        prefetcher = Prefetcher(listener, [(0, ("x", number)) for number in range(5)])
        for number in range(5):
            frame = await prefetcher.take(0, ("x", number))
            assert bytes(frame.blocks[0].data) == bytes([number])
            seen.append(len(listener.asked) - number - 1)
    ahead, asked = seen, listener.asked
    assert max(ahead) <= 2
    assert asked == [0, 1, 2, 3, 4]


def test_what_was_not_expected_is_requested_when_it_is_needed():
    async def main():
        sender_end, receiver_end = world(2)
        async with Actor(sender_end) as teller, Actor(receiver_end) as listener:
            teller.tell(1, ("odd", 1), b"!")
            return bytes((await Prefetcher(listener).take(0, ("odd", 1))).blocks[0].data)

    assert asyncio.run(main()) == b"!"


async def test_an_early_receive_is_not_requested_twice():
    """It was, and the actor waited at its end for a message that had been taken already."""

    sender_end, receiver_end = world(2)
    async with Actor(sender_end) as teller, Asked(receiver_end) as listener:
        for number in range(4):
            teller.tell(1, ("x", number), bytes([number]))
        prefetcher = Prefetcher(listener, [(0, ("x", number)) for number in range(4)])
        for number in (3, 2, 1, 0):
            assert bytes((await prefetcher.take(0, ("x", number))).blocks[0].data) == bytes([number])
    assert sorted(listener.asked) == [0, 1, 2, 3]


async def test_what_is_expected_later_is_requested_after_the_rest():
    sender_end, receiver_end = world(2)
    async with Actor(sender_end) as teller, Asked(receiver_end) as listener:
        prefetcher = Prefetcher(listener)
        prefetcher.expect([(0, ("x", 0))])
        prefetcher.expect([(0, ("x", number)) for number in (1, 2)])
        coming = prefetcher.requested(0, ("x", 0))
        await asyncio.sleep(0)
        assert listener.asked == [0, 1] and not coming.done()
        for number in range(3):
            teller.tell(1, ("x", number), bytes([number]))
        await asyncio.wait([coming])
        numbers = [bytes((await prefetcher.take(0, ("x", number))).blocks[0].data)[0] for number in range(3)]
    assert (numbers, listener.asked) == ([0, 1, 2], [0, 1, 2])


def test_the_requested_receives_that_have_arrived_are_listed_and_not_consumed():
    async def main():
        sender_end, receiver_end = world(2)
        async with Actor(sender_end) as teller, Actor(receiver_end) as listener:
            keys = [("x", number) for number in range(3)]
            prefetcher = Prefetcher(listener, [(0, key) for key in keys])
            before = [prefetcher.arrived(0, key) for key in keys]
            sends = [teller.tell(1, key, b"!") for key in keys]
            await asyncio.wait(sends[:2])
            arrived = [prefetcher.arrived(0, key) for key in keys]
            for key in keys:
                await prefetcher.take(0, key)
            return before, arrived

    assert asyncio.run(main()) == ([False, False, False], [True, True, False])
