"""What every endpoint promises, clause by clause: each takes a world in which parties can be opened and killed."""

import asyncio
from contextlib import contextmanager

import numpy as np
import pytest

from transports import Block, TransportError, WireError
from transports.rpc import Rejected, Response, Unreachable
from transports.wire.arrays import SIZES

SMALL, LARGE = 1 << 10, 5 << 20
ROOM = 1 << 30
BESIDE = 16 << 10
"""More than two requests take beside their arrays."""


async def echo(request):
    return Response(request.blocks, request.note)


class Holding:
    """A handler that begins, and goes on when it is let."""

    def __init__(self):
        self.begun, self.ended = asyncio.Event(), asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self, request):
        self.begun.set()
        try:
            await self.go.wait()
        finally:
            self.ended.set()
        return Response(note=request.note)


@contextmanager
def refused(reason, **facts):
    with pytest.raises(Rejected) as seen:
        yield seen
    assert seen.value.reason == reason
    assert facts.items() <= seen.value.facts.items()


def bytes_of(nbytes, seed=0):
    return np.random.default_rng([seed, nbytes]).integers(0, 256, nbytes, np.uint8)


async def pair(world, **topics):
    """A requester, and a responder that handles these topics."""
    asker, answerer = await world.open(), await world.open()
    for topic, handler in topics.items():
        answerer.handle(topic, handler, ROOM)
    return asker, answerer


async def a_request_is_answered_with_its_note_and_arrays(world):
    a, b = await pair(world, echo=echo)
    note = {"id": [3, 14], "loss": 2.5, "name": "stage", "raw": b"\0", "none": None}
    for size in (0, 1, SMALL, LARGE):
        response = await a.request(b.address, "echo", bytes_of(size), np.float64(size), note=note)
        assert response.note == note
        assert bytes(response.blocks[0].data) == bytes_of(size).tobytes()
        assert response.blocks[1].numpy() == size and response.blocks[1].shape == ()
    assert (a.bytes_sent, a.bytes_received) == (b.bytes_received, b.bytes_sent)
    assert a.bytes_sent == sum((0, 1, SMALL, LARGE)) + 4 * 8
    assert not a.invalid_input and not b.invalid_input


async def the_handler_knows_the_sender_of_a_request(world):
    a, b = await pair(world)
    askers = []

    async def who(request):
        askers.append((request.sender, request.topic))
        return Response()

    b.handle("who", who)
    await a.request(b.address, "who")
    assert askers == [((a.address, a.incarnation), "who")]


async def requests_of_one_topic_are_handled_in_the_order_sent(world):
    heard = []

    async def hear(request):
        heard.append(request.note)
        return Response()

    a, b = await pair(world, hear=hear)
    sizes = [LARGE, SMALL, 0, LARGE, SMALL, 100_000, 0] * 4
    await asyncio.gather(*(a.request(b.address, "hear", bytes_of(size), note=n) for n, size in enumerate(sizes)))
    assert heard == list(range(len(sizes)))


async def responses_come_in_any_order(world):
    hold = Holding()
    a, b = await pair(world, hold=hold, echo=echo)
    first = asyncio.create_task(a.request(b.address, "hold", note="first"))
    assert (await a.request(b.address, "echo", note="second")).note == "second"
    assert not first.done()
    hold.go.set()
    assert (await first).note == "first"


async def a_rejection_carries_its_facts(world):
    async def stale(request):
        raise Rejected("stale", step=7, of="stage 2")

    a, b = await pair(world, stale=stale)
    with refused("stale", step=7, of="stage 2"):
        await a.request(b.address, "stale", bytes_of(SMALL))
    assert not b.failed.done()


async def an_unknown_topic_is_refused_and_the_known_ones_named(world):
    a, b = await pair(world, echo=echo, stale=echo)
    for size in (0, LARGE):
        with refused("unknown topic", topic="eko", known="echo, stale"):
            await a.request(b.address, "eko", bytes_of(size))
    assert (await a.request(b.address, "echo", note=1)).note == 1


async def what_is_too_large_is_refused_and_what_fits_is_not(world):
    a, b = await pair(world)
    b.handle("small", echo, max_bytes=SMALL)
    b.handle("bare", echo)
    for size in (SMALL + 1, LARGE, 8 * LARGE):
        with refused("too large", bytes=size, limit=SMALL):
            await a.request(b.address, "small", bytes_of(size))
    with refused("too large", bytes=1, limit=0):
        await a.request(b.address, "bare", bytes_of(1))
    assert (await a.request(b.address, "small", bytes_of(SMALL))).blocks[0].nbytes == SMALL
    assert b.bytes_received == SMALL


async def too_many_at_once_are_refused_until_some_are_answered(world):
    a, b = await pair(world)
    c, hold = await world.open(), Holding()
    b.handle("hold", hold, max_waiting=3)
    held = [asyncio.create_task(a.request(b.address, "hold")) for _ in range(3)]
    await hold.begun.wait()
    with refused("busy", waiting=3, limit=3):
        await a.request(b.address, "hold")
    hold.go.set()
    await c.request(b.address, "hold")  # another sender has places of its own
    await asyncio.gather(*held)
    await a.request(b.address, "hold")


async def arrays_beyond_the_room_for_one_party_are_refused(world):
    room = 2 * LARGE + BESIDE
    a, b = await world.open(room=room), await world.open(room=room)
    hold = Holding()
    b.handle("hold", hold, ROOM)
    b.handle("echo", echo, ROOM)
    for _ in range(3):
        await a.request(b.address, "echo", bytes_of(LARGE))
    held = [asyncio.create_task(a.request(b.address, "hold", bytes_of(LARGE))) for _ in range(2)]
    await hold.begun.wait()
    with refused("busy", limit=room) as seen:
        await a.request(b.address, "hold", bytes_of(BESIDE))
    assert room < seen.value.facts["bytes"] <= room + BESIDE
    hold.go.set()
    await asyncio.gather(*held)

    async def much(request):
        return Response([np.zeros(2 * LARGE + request.note, np.uint8)])

    b.handle("much", much)
    assert (await a.request(b.address, "much", note=0)).blocks[0].nbytes == 2 * LARGE
    with refused("too large", limit=room):
        await a.request(b.address, "much", note=BESIDE)
    assert (await a.request(b.address, "much", note=0)).blocks[0].nbytes == 2 * LARGE


async def notes_count_as_the_memory_that_they_take(world):
    a, b = await world.open(room=1 << 20), await world.open(room=1 << 20)
    hold = Holding()
    b.handle("hold", hold)
    small = [[]] * 5000  # 5 kB on the wire, some 330 kB in memory
    asked = [asyncio.create_task(a.request(b.address, "hold", note=small)) for _ in range(9)]
    await hold.begun.wait()
    with refused("busy", limit=1 << 20):
        await a.request(b.address, "hold", note=small)
    hold.go.set()
    ends = await asyncio.gather(*asked, return_exceptions=True)
    assert 1 <= sum(isinstance(end, Response) for end in ends) <= 3
    assert (await a.request(b.address, "hold", note=small)).note == small


async def an_absent_party_is_unreachable_and_nothing_was_sent(world):
    a, b = await pair(world, echo=echo)
    await b.close()
    for address in (b.address, "no address"):
        with pytest.raises(Unreachable, match="cannot be reached") as seen:
            await a.request(address, "echo", bytes_of(LARGE))
        assert seen.value.address == address and not seen.value.sent


async def a_party_that_dies_while_handling_is_lost_at_once(world):
    hold, lost = Holding(), []
    a, b = await pair(world, hold=hold)
    a.add_lost_callback(lost.append)
    asked = [asyncio.create_task(a.request(b.address, "hold", bytes_of(size))) for size in (0, LARGE)]
    await hold.begun.wait()
    await world.kill(b)
    for task in asked:
        with pytest.raises(Unreachable) as seen:
            await task
        assert seen.value.sent
    assert lost == [(b.address, b.incarnation)]
    await hold.ended.wait()


async def both_sides_learn_that_a_connection_was_closed(world):
    a, b = await pair(world, echo=echo)
    lost, heard = [], asyncio.Event()
    a.add_lost_callback(lost.append)
    b.add_lost_callback(lambda party: (lost.append(party), heard.set()))
    await a.request(b.address, "echo")
    await a.close()
    await heard.wait()
    assert lost == [(b.address, b.incarnation), (a.address, a.incarnation)]


async def parties_that_call_one_another_at_once_are_lost_once(world):
    a, b = await pair(world, echo=echo)
    a.handle("echo", echo)
    await asyncio.gather(a.request(b.address, "echo"), b.request(a.address, "echo"))
    lost, heard = [], asyncio.Event()
    a.add_lost_callback(lambda party: (lost.append(party), heard.set()))
    await world.kill(b)
    await heard.wait()
    with pytest.raises(Unreachable):
        await a.request(b.address, "echo")
    assert lost == [(b.address, b.incarnation)]


async def a_lost_callback_that_raises_is_reported_and_the_endpoint_continues(world):
    def raises(party):
        raise ZeroDivisionError

    a, b = await pair(world, echo=echo)
    a.handle("echo", echo)
    lost = asyncio.Event()
    a.add_lost_callback(raises)
    a.add_lost_callback(lambda party: lost.set())
    await a.request(b.address, "echo")
    await world.kill(b)
    await lost.wait()
    c = await world.open()
    assert (await c.request(a.address, "echo", note="third")).note == "third"
    with pytest.raises(ZeroDivisionError):
        await a.failed


async def a_lost_callback_that_was_removed_is_not_called(world):
    a, b = await pair(world, echo=echo)
    removed, lost = [], asyncio.Event()
    remove = a.add_lost_callback(removed.append)
    a.add_lost_callback(lambda party: lost.set())
    remove()
    remove()
    await a.request(b.address, "echo")
    await world.kill(b)
    await lost.wait()
    assert not removed


async def a_handler_for_a_party_that_died_is_cancelled(world):
    hold = Holding()
    a, b = await pair(world, hold=hold)
    asked = asyncio.create_task(a.request(b.address, "hold"))
    await hold.begun.wait()
    await world.kill(a)
    await hold.ended.wait()
    with pytest.raises(Unreachable):
        await asked
    assert not hold.go.is_set()


async def a_cancelled_request_cancels_its_handler_and_nothing_else(world):
    hold, other = Holding(), Holding()
    a, b = await pair(world, hold=hold, other=other, echo=echo)
    goes_on = asyncio.create_task(a.request(b.address, "other", note="on"))
    asked = asyncio.create_task(a.request(b.address, "hold", bytes_of(LARGE)))
    await hold.begun.wait()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await hold.ended.wait()
    other.go.set()
    assert (await goes_on).note == "on"
    assert not b.failed.done() and not b.invalid_input


async def a_request_cancelled_on_its_way_leaves_its_memory_and_the_connection_alone(world):
    a, b = await pair(world, echo=echo)
    await a.request(b.address, "echo")
    for turns in range(6):
        data = bytes_of(4 * LARGE)
        asked = asyncio.create_task(a.request(b.address, "echo", data))
        for _ in range(turns):
            await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        data[:] = 0
        after = await a.request(b.address, "echo", bytes_of(LARGE, turns))
        assert bytes(after.blocks[0].data) == bytes_of(LARGE, turns).tobytes()
    assert not a.invalid_input and not b.invalid_input


async def parties_request_of_one_another_at_once_and_while_they_respond(world):
    a, b = await pair(world)

    async def count_down(request):
        if request.note == 0:
            return Response(note=[0])
        end = a if request.sender.address == b.address else b
        below = await end.request(request.sender.address, "count", bytes_of(request.note), note=request.note - 1)
        return Response(note=[request.note, *below.note])

    for end in (a, b):
        end.handle("count", count_down, ROOM)
    asks = [one.request(other.address, "count", note=10) for one, other in ((a, b), (b, a)) for _ in range(10)]
    for response in await asyncio.gather(*asks):
        assert response.note == list(range(10, -1, -1))


async def large_arrays_cross_on_their_way(world):
    a, b = await pair(world, echo=echo)
    a.handle("echo", echo, ROOM)
    ways = [(a, b), (b, a)] * 3
    answers = await asyncio.gather(
        *(one.request(other.address, "echo", bytes_of(LARGE, n), bytes_of(n)) for n, (one, other) in enumerate(ways))
    )
    for n, response in enumerate(answers):
        assert [bytes(block.data) for block in response.blocks] == [bytes_of(LARGE, n).tobytes(), bytes_of(n).tobytes()]


async def a_party_may_send_itself_a_request(world):
    a, _ = await pair(world)
    a.handle("echo", echo, ROOM)
    assert bytes((await a.request(a.address, "echo", bytes_of(LARGE))).blocks[0].data) == bytes_of(LARGE).tobytes()


async def a_party_opened_again_is_another_incarnation(world):
    a, b = await pair(world, echo=echo)
    askers = []
    await a.request(b.address, "echo")
    await world.kill(b)
    again = await world.open(at=b)
    assert again.address == b.address and again.incarnation != b.incarnation

    async def who(request):
        askers.append(request.sender)
        return Response()

    a.handle("who", who)
    lost = asyncio.Event()
    again.add_lost_callback(lambda party: lost.set())
    await again.request(a.address, "who")
    assert askers == [(again.address, again.incarnation)]
    await a.close()
    await lost.wait()


async def every_dtype_comes_as_it_went(world):
    a, b = await pair(world, echo=echo)
    rng = np.random.default_rng(5)
    for items in (0, 7, 100_000):
        blocks = [Block(name, (items,), memoryview(rng.bytes(items * size))) for name, size in SIZES.items()]
        response = await a.request(b.address, "echo", *blocks)
        assert [(block.dtype, block.shape, bytes(block.data)) for block in response.blocks] == [
            (block.dtype, block.shape, bytes(block.data)) for block in blocks
        ]


async def shapes_and_gaps_come_as_they_look(world):
    a, b = await pair(world, echo=echo)
    square = bytes_of(1 << 14).reshape(128, 128)
    arrays = [np.zeros((3, 0, 2)), np.full((1,) * 16, 3), square.T, square[::2, 1::3], np.array(5, ">i4")]
    response = await a.request(b.address, "echo", *arrays)
    for block, array in zip(response.blocks, arrays, strict=True):
        assert block.shape == array.shape and np.array_equal(block.numpy(), array)


async def what_was_delivered_is_the_receivers_own(world):
    kept = []

    async def keep(request):
        kept.extend(request.blocks)
        return Response([kept[0].numpy().copy()])

    for size in (SMALL, LARGE):
        a, b = await pair(world, keep=keep)
        data = bytes_of(size)
        response = await a.request(b.address, "keep", data)
        data[:] = 0
        assert bytes(kept[0].data) == bytes_of(size).tobytes()
        for block in (kept.pop(), response.blocks[0]):
            block.numpy()[:] = 1
        assert not data.any()


async def what_the_wire_cannot_carry_is_an_error_of_its_sender(world):
    async def answers_badly(request):
        return Response(note=object())

    async def refuses_badly(request):
        raise Rejected("no", why=object())

    a, b = await pair(world, echo=echo, bad=answers_badly, refuses=refuses_badly)
    for note in (object(), "x" * (1 << 17), {1: {2: 2**70}}):
        with pytest.raises(WireError):
            await a.request(b.address, "echo", note=note)
    for topic in ("bad", "refuses"):
        with refused("failed"):
            await a.request(b.address, topic)
    assert (await a.request(b.address, "echo", note=1)).note == 1
    assert not b.failed.done()


async def a_handler_that_fails_refuses_and_fails_its_endpoint(world):
    async def divides(request):
        return Response(note=1 / request.note)

    a, b = await pair(world, divides=divides)
    assert (await a.request(b.address, "divides", note=2)).note == 0.5
    with refused("failed", error="ZeroDivisionError"):
        await a.request(b.address, "divides", note=0)
    with pytest.raises(ZeroDivisionError):
        await b.failed


async def a_handler_that_gives_no_answer_fails_its_endpoint(world):
    async def forgets(request):
        return None

    async def gives_what_is_no_array(request):
        return Response([object()], request.note)

    a, b = await pair(world, forgets=forgets, gives=gives_what_is_no_array)
    with refused("failed"):
        await a.request(b.address, "gives")
    assert not b.failed.done()
    with refused("failed", error="AttributeError"):
        await a.request(b.address, "forgets")
    with pytest.raises(AttributeError):
        await b.failed


async def a_handler_whose_own_request_failed_refuses_and_the_endpoint_continues(world):
    async def passes_on(request):
        raise Unreachable("elsewhere", "it is gone")

    async def gives_up(request):
        raise asyncio.CancelledError

    a, b = await pair(world, passes=passes_on, gives=gives_up)
    with refused("failed", error="elsewhere cannot be reached: it is gone"):
        await a.request(b.address, "passes")
    with refused("failed"):
        await a.request(b.address, "gives")
    assert not b.failed.done()


async def closing_ends_every_wait_and_may_be_done_twice(world):
    hold = Holding()
    a, b = await pair(world, hold=hold, echo=echo)
    asked = asyncio.create_task(a.request(b.address, "hold"))
    await hold.begun.wait()
    back = asyncio.create_task(b.request(a.address, "echo", bytes_of(LARGE)))
    await asyncio.gather(a.close(), a.close())
    await a.close()
    assert asked.done() or await asyncio.wait([asked])
    for task in (asked, back):
        with pytest.raises(TransportError):
            await task
    await hold.ended.wait()
    with pytest.raises(Unreachable, match="closed") as seen:
        await a.request(b.address, "echo")
    assert not seen.value.sent
    async with await world.open() as c:
        await c.request(b.address, "echo")


async def a_handler_may_close_its_endpoint(world):
    a, b = await pair(world)

    async def leave(request):
        await b.close()
        return Response()

    b.handle("leave", leave)
    with pytest.raises(Unreachable):
        await a.request(b.address, "leave")
    await b.close()


async def hundreds_send_requests_to_one_at_once(world):
    b = await world.open()
    b.handle("echo", echo, ROOM)
    askers = [await world.open() for _ in range(8)]
    answers = await asyncio.gather(
        *(end.request(b.address, "echo", bytes_of(n), note=n) for n in range(50) for end in askers)
    )
    assert [response.note for response in answers] == [n for n in range(50) for _ in askers]


CLAUSES = {
    name: clause
    for name, clause in globals().items()
    if asyncio.iscoroutinefunction(clause) and name not in ("echo", "pair")
}
