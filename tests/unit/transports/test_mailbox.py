"""The mailbox: everything that arrives is received once, in order, whatever is cancelled or fails on the way."""

import asyncio
from collections import defaultdict
from types import SimpleNamespace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from transports import Closed, PeerLost
from transports.mailbox import Mailbox

PEERS = st.integers(0, 2)
KEYS = st.sampled_from([("a",), ("b", 1)])


@pytest.fixture
def box():
    """A mailbox of three ranks."""
    return Mailbox(3)


async def turns(count=3):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_an_arrival_waits_for_its_receive_and_the_other_way_round(box):
    box.put(1, ("k",), "early")
    assert (await box.take(1, ("k",))).item == "early"
    take = asyncio.ensure_future(box.take(1, ("k",)))
    await turns()
    box.put(2, ("k",), "from another")
    box.put(1, ("other",), "another key")
    assert not take.done()
    box.put(1, ("k",), "late")
    arrival = await take
    assert (arrival.peer, arrival.key, arrival.item) == (1, ("k",), "late")


@pytest.mark.parametrize("peer", [1, None])
async def test_take_nowait_returns_an_arrival_or_none(box, peer):
    assert box.take_nowait(peer, ("k",)) is None
    box.put(1, ("other",), "another key")
    box.put(1, ("k",), "first")
    box.put(1, ("k",), "second")
    assert [box.take_nowait(peer, ("k",)).item for _ in range(2)] == ["first", "second"]
    assert box.take_nowait(peer, ("k",)) is None and box.take_nowait(2, ("other",)) is None


async def test_after_a_failure_nothing_is_taken_without_waiting(box):
    box.put(1, ("k",), "here")
    box.fail_all(Closed("over"))
    assert box.take_nowait(1, ("k",)) is None and not box.probe(1, ("k",))
    with pytest.raises(Closed, match="over"):
        await box.take(1, ("k",))


async def test_receives_from_anyone_and_from_a_peer_are_served_in_the_order_they_came(box):
    takes = [asyncio.ensure_future(box.take(peer, ("k",))) for peer in (None, 1, None, 1)]
    await turns()
    for item in range(4):
        box.put(1, ("k",), item)
    assert [(await take).item for take in takes] == [0, 1, 2, 3]


async def test_from_anyone_the_peers_take_turns(box):
    for item in range(3):
        box.put(0, ("k",), item)
    box.put(1, ("k",), 10)
    box.put(2, ("k",), 20)
    assert [(await box.take(None, ("k",))).item for _ in range(5)] == [0, 10, 20, 1, 2]


async def test_a_cancelled_receive_that_was_already_matched_brings_its_arrival_back_to_its_place(box):
    takes = [asyncio.ensure_future(box.take(1, ("k",))) for _ in range(2)]
    await turns()
    for item in range(4):
        box.put(1, ("k",), item)
    for take in takes:
        take.cancel()
    await turns()
    assert [(await box.take(1, ("k",))).item for _ in range(4)] == [0, 1, 2, 3]


async def test_what_a_cancelled_receive_gives_back_goes_to_the_next_that_waits(box):
    first, second = (asyncio.ensure_future(box.take(1, ("k",))) for _ in range(2))
    await turns()
    box.put(1, ("k",), "only")
    first.cancel()
    assert (await second).item == "only"
    assert first.cancelled()


async def test_accept_runs_at_the_match_and_its_refusal_leaves_the_item(box):
    accepted = []

    class Refusing:
        def accept(self, item):
            raise ValueError(f"{item} does not fit")

    refuse = Refusing()
    unfit = asyncio.ensure_future(box.take(1, ("k",), refuse))
    fit = asyncio.ensure_future(box.take(1, ("k",), SimpleNamespace(accept=accepted.append)))
    await turns()
    box.put(1, ("k",), "item")
    assert accepted == ["item"]
    with pytest.raises(ValueError, match="item does not fit"):
        await unfit
    assert (await fit).item == "item"
    box.put(1, ("k",), "next")
    with pytest.raises(ValueError, match="next does not fit"):
        await box.take(1, ("k",), refuse)
    assert (await box.take(1, ("k",))).item == "next"


async def test_a_lost_peer_fails_its_receives_once_nothing_is_left(box):
    waiting = asyncio.ensure_future(box.take(1, ("k",)))
    others = [asyncio.ensure_future(box.take(peer, ("k",))) for peer in (0, None)]
    await turns()
    box.put(1, ("left",), "left")
    box.fail_peer(1, PeerLost(1, "gone"))
    with pytest.raises(PeerLost, match="rank 1"):
        await waiting
    assert (await box.take(1, ("left",))).item == "left"
    with pytest.raises(PeerLost, match="rank 1"):
        await box.take(1, ("left",))
    assert not any(other.done() for other in others)
    box.fail_peer(2, PeerLost(2, "gone too"))
    with pytest.raises(PeerLost):
        await others[1]
    others[0].cancel()


async def test_after_fail_all_everything_fails_with_the_first_error(box):
    takes = [asyncio.ensure_future(box.take(peer, ("k",))) for peer in (0, None)]
    await turns()
    box.put(2, ("left",), "left")
    box.fail_all(Closed("first"))
    box.fail_all(Closed("second"))
    for take in [*takes, box.take(2, ("left",))]:
        with pytest.raises(Closed, match="first"):
            await take


async def test_dropped_arrivals_are_forgotten(box):
    for peer in (1, 2):
        for key in (("a",), ("b",)):
            box.put(peer, key, (peer, key))
    assert sorted(arrival.item for arrival in box.drop(1)) == [(1, ("a",)), (1, ("b",))]
    assert box.drop(1) == []
    assert (await box.take(None, ("a",))).peer == 2


class MailboxMachine(RuleBasedStateMachine):
    """Any order of arrivals, receives, cancellations and put-backs: nothing is lost, doubled or out of order."""

    def __init__(self):
        super().__init__()
        self.runner = asyncio.Runner()
        self.runner.run(asyncio.sleep(0))
        self.box = Mailbox(3)
        self.sent, self.got, self.tasks = defaultdict(int), defaultdict(list), []

    @rule(peer=PEERS, key=KEYS)
    def arrive(self, peer, key):
        self._in_loop(lambda: self.box.put(peer, key, self.sent[peer, key]))
        self.sent[peer, key] += 1

    @rule(peer=st.none() | PEERS, key=KEYS)
    def take(self, peer, key):
        self._in_loop(lambda: self.tasks.append(asyncio.ensure_future(self.box.take(peer, key))))

    @rule(data=st.data())
    def cancel_one(self, data):
        if waiting := [task for task in self.tasks if not task.done()]:
            self._in_loop(data.draw(st.sampled_from(waiting)).cancel)

    @rule(peer=PEERS, key=KEYS, data=st.data())
    def arrive_and_cancel_in_one_breath(self, peer, key, data):
        waiting = [task for task in self.tasks if not task.done()]
        victims = data.draw(st.lists(st.sampled_from(waiting), unique=True)) if waiting else []

        def both():
            self.box.put(peer, key, self.sent[peer, key])
            for task in victims:
                task.cancel()

        self._in_loop(both)
        self.sent[peer, key] += 1

    @invariant()
    def nothing_is_lost_or_doubled_and_nobody_waits_beside_a_message(self):
        for task in [task for task in self.tasks if task.done()]:
            self.tasks.remove(task)
            if not task.cancelled():
                arrival = task.result()
                self.got[arrival.peer, arrival.key].append(arrival.item)
        items = defaultdict(list)
        for peer in range(3):
            for arrival in self.box.arrivals(peer):
                items[peer, arrival.key].append(arrival.item)
        for address, count in self.sent.items():
            assert sorted(self.got[address] + items[address]) == list(range(count))
            assert items[address] == sorted(items[address])

    def teardown(self):
        for task in self.tasks:
            task.cancel()
        self.runner.close()

    def _in_loop(self, act):
        async def main():
            act()
            await turns()

        self.runner.run(main())


TestMailbox = MailboxMachine.TestCase
TestMailbox.settings = settings(max_examples=40, stateful_step_count=30)
