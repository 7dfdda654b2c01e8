"""Worlds of ranks between endpoints: opened together, ended for all, closed to other parties and to malformed notes."""

import asyncio

import numpy as np
import pytest

from tests.virtual_time import virtual_seconds
from transports import Closed, PeerAborted, PeerLost, WireError
from transports.rpc import Rejected, Unreachable, open_endpoint
from transports.rpc.tcp.endpoint import TcpEndpoint, open_at
from transports.rpc.virtual.network import VirtualNetwork
from transports.rpc.world import Worlds
from transports.rpc.world.notes import BufferNote, EndNote, MessageNote, OpenNote
from transports.rpc.world.world import GOODBYE_S
from transports.stream.sockets import CLOSE_S
from transports.wire.frames import pack_header

OPEN, MESSAGE, BUFFER, END = (note.topic for note in (OpenNote, MessageNote, BufferNote, EndNote))
MAX_BYTES = 1 << 20


async def opened(ends, name="world"):
    addresses = [end.address for end in ends]
    return await asyncio.gather(*(Worlds(end, MAX_BYTES).open(name, addresses) for end in ends))


@pytest.fixture
def network():
    return VirtualNetwork(delay=1e-3)


@pytest.mark.virtual
async def test_a_world_opens_when_the_last_party_opens_it(network):
    one, other = network.endpoint("one"), network.endpoint("other")
    addresses = [one.address, other.address]
    worlds = Worlds(other, MAX_BYTES)
    first = asyncio.ensure_future(Worlds(one, MAX_BYTES).open("late", addresses))
    await virtual_seconds(1.0)
    assert not first.done()
    second = await worlds.open("late", addresses)
    assert (await first).rank == 0 and second.rank == 1


@pytest.mark.virtual
async def test_a_killed_party_is_lost_to_all_that_wait_for_it(network):
    ends = await opened([network.endpoint(name) for name in "abc"])
    waiting = [asyncio.ensure_future(end.receive(2, ("never",))) for end in ends[:2]]
    await virtual_seconds(0.01)
    network.kill("c")
    for done in waiting:
        with pytest.raises(PeerLost, match="lost rank 2"):
            await done
    with pytest.raises(PeerLost, match="lost rank 2"):
        await ends[0].send(2, ("k",))
    sent = asyncio.ensure_future(ends[0].send(1, ("still",), note=1))
    assert (await ends[1].receive(0, ("still",))).note == 1
    await sent


@pytest.mark.virtual
async def test_a_party_that_is_not_there_ends_the_opening(network):
    one = network.endpoint("one")
    worlds = Worlds(one, MAX_BYTES)
    with pytest.raises(PeerLost, match="lost rank 1"):
        await worlds.open("world", [one.address, "virtual://nowhere"])
    assert (await worlds.open("world", [one.address])).world_size == 1


async def test_a_party_that_listens_and_does_not_reply_in_time_is_waited_for(monkeypatch):
    """A process without a core: its kernel takes connections, and it answers no handshake until it runs again."""
    monkeypatch.setattr("transports.stream.acceptor.HANDSHAKE_TIMEOUT_S", 0.05)
    listen, at = TcpEndpoint.listen, ("127.0.0.1", 0)
    monkeypatch.setattr(TcpEndpoint, "listen", lambda end: asyncio.sleep(0))
    starved = await open_at(at)
    monkeypatch.undo()
    async with starved, await open_at(at) as other:
        monkeypatch.setattr("transports.stream.acceptor.HANDSHAKE_TIMEOUT_S", 0.05)
        with pytest.raises(Unreachable, match="what listens there does not reply") as seen:
            await other.request(starved.address, "echo")
        assert seen.value.silent and not seen.value.sent
        attempts, request, warnings = asyncio.Queue[None](), other.request, list[str]()

        def counted(*arguments, **note):
            attempts.put_nowait(None)
            return request(*arguments, **note)

        monkeypatch.setattr(other, "request", counted)
        warning = lambda text, *facts: warnings.append(text % facts)  # noqa: E731
        monkeypatch.setattr("transports.rpc.world.requests._logger.warning", warning)
        opening = asyncio.ensure_future(Worlds(other, MAX_BYTES).open("w", [starved.address, other.address]))
        for _ in range(3):
            await attempts.get()
        assert not opening.done()
        (warned,) = warnings
        assert f"waits for rank 0: {starved.address} cannot be reached" in warned
        monkeypatch.undo()
        await listen(starved)
        await Worlds(starved, MAX_BYTES).open("w", [starved.address, other.address])
        assert (await opening).rank == 1


@pytest.mark.virtual
async def test_an_impossible_world_is_refused(network):
    one = network.endpoint("one")
    worlds = Worlds(one, MAX_BYTES)
    for addresses in (["virtual://other"], [one.address, one.address]):
        with pytest.raises(ValueError, match="no world"):
            await worlds.open("world", addresses)


@pytest.mark.virtual
@pytest.mark.parametrize("failure", ["cancelled", "a third party is lost"])
async def test_a_failed_open_aborts_the_world_for_the_parties_that_have_opened_it(network, failure):
    """`one` and `other` have answered each other when the opening of `other` fails."""
    names = ["one", "other", "third"] if failure != "cancelled" else ["one", "other"]
    ends = {name: network.endpoint(name) for name in names}
    worlds, addresses = {name: Worlds(end, MAX_BYTES) for name, end in ends.items()}, [e.address for e in ends.values()]
    first = asyncio.ensure_future(worlds["one"].open("world", addresses))
    await virtual_seconds(0.1)
    second = asyncio.ensure_future(worlds["other"].open("world", addresses))
    if failure == "cancelled":
        await virtual_seconds(1.5e-3)  # after the request of `other` has arrived, before its reply has
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        with pytest.raises(PeerAborted, match=r"other could not open the world \(it was stopped\)$"):
            await (await first).receive(1, ("never",))
        with pytest.raises(PeerAborted, match="could not open the world"):
            await worlds["other"].open("world", addresses)
    else:
        network.cut("one", "third")
        network.kill("third")
        with pytest.raises(PeerLost, match="lost rank 2"):
            await second
        with pytest.raises(PeerAborted, match="other could not open the world"):
            await first


@pytest.mark.virtual
async def test_every_rank_raises_the_abort_even_from_a_rank_that_only_passes_it_on(network):
    one, other, failing = await opened([network.endpoint(name) for name in "abc"])
    network.cut("b", "c")
    aborting = asyncio.ensure_future(failing.abort("the loss is not finite"))
    await virtual_seconds(0.1)
    with pytest.raises(PeerAborted, match="the loss is not finite") as seen:
        await other.send(0, ("k",))
    assert seen.value.rank == 2
    await aborting
    await one.close()


@pytest.mark.virtual
async def test_a_rank_that_closes_after_an_abort_passes_it_on(network):
    one, other, failing = await opened([network.endpoint(name) for name in "abc"])
    network.cut("b", "c")
    waiting = asyncio.ensure_future(other.receive(2, ("never",)))
    aborting = asyncio.ensure_future(failing.abort("the loss is not finite"))
    await virtual_seconds(0.1)
    await one.close()
    with pytest.raises(PeerAborted, match="the loss is not finite") as seen:
        await waiting
    assert seen.value.rank == 2
    await aborting


@pytest.mark.virtual
async def test_more_sends_than_a_receiver_takes_at_once_wait_for_their_turn(network):
    one, other = await opened([network.endpoint(name) for name in "ab"])
    sends = [asyncio.ensure_future(one.send(1, ("k",), note=n)) for n in range(1500)]
    assert [(await other.receive(0, ("k",))).note for _ in sends] == [*range(1500)]
    await asyncio.gather(*sends)


@pytest.mark.virtual
async def test_a_stopped_party_holds_no_closing_rank_for_ever(network):
    """A stopped process keeps its connections, so that no message to it fails; `close` waited for its reply."""
    one, _, third = await opened([network.endpoint(name) for name in "abc"])
    network.freeze("b")
    unanswered = asyncio.ensure_future(one.send(1, ("k",)))
    await virtual_seconds(0.1)
    async with asyncio.timeout(CLOSE_S + 2 * GOODBYE_S):
        await one.close()
    with pytest.raises(Closed, match="rank 0 is closed"):
        await unanswered
    with pytest.raises(PeerLost, match="it closed"):
        await third.receive(0, ("never",))


@pytest.mark.virtual
async def test_a_party_that_goes_on_before_that_gets_what_a_closing_rank_has_sent(network):
    one, other = await opened([network.endpoint(name) for name in "ab"])
    network.freeze("b")
    sends = [asyncio.ensure_future(one.send(1, ("k",), note=note)) for note in range(2)]
    closing = asyncio.ensure_future(one.close())
    await virtual_seconds(0.9 * CLOSE_S)
    network.thaw("b")
    await asyncio.gather(closing, *sends)
    assert [(await other.receive(0, ("k",))).note for _ in sends] == [0, 1]


@pytest.mark.virtual
@pytest.mark.parametrize("stopped", [False, True])
async def test_a_closing_rank_waits_for_a_message_that_is_long_on_its_way(stopped):
    """1 MiB at 10 kB/s, for 105 s; a party that is stopped meanwhile does not get it."""
    network = VirtualNetwork(delay=1e-3, rate=1e4)
    one, other = await opened([network.endpoint(name) for name in "ab"])
    send = asyncio.ensure_future(one.send(1, ("k",), np.zeros(MAX_BYTES, np.uint8)))
    await virtual_seconds(0.1)
    closing, clock = asyncio.ensure_future(one.close()), asyncio.get_running_loop()
    await virtual_seconds(5 * CLOSE_S)
    assert not closing.done()
    if stopped:
        network.freeze("b")
        async with asyncio.timeout(2 * CLOSE_S + 2 * GOODBYE_S):
            await closing
        with pytest.raises(Closed):
            await send
    else:
        await asyncio.gather(closing, send)
        assert (await other.receive(0, ("k",))).blocks[0].nbytes == MAX_BYTES and clock.time() > 10 * CLOSE_S


@pytest.mark.virtual
async def test_a_message_that_is_too_large_fails_its_send_and_loses_no_rank(network):
    one, other = await opened([network.endpoint(name) for name in "ab"])
    large = np.zeros(MAX_BYTES + 1, np.uint8)
    for send in (one.send(1, ("k",), large), one.send_buffer(1, 3, large.data)):
        with pytest.raises(WireError, match=f"too large .bytes: {MAX_BYTES + 1}, most: {MAX_BYTES}"):
            await send
    await asyncio.gather(one.send(1, ("k",), note=1), other.receive(0, ("k",)))


@pytest.mark.virtual
async def test_requests_to_open_a_world_that_are_cancelled_leave_nothing(network):
    one, other = network.endpoint("one"), network.endpoint("other")
    worlds = Worlds(other, MAX_BYTES)
    requests = [asyncio.ensure_future(one.request(other.address, OPEN, note=[f"w{n % 2}"])) for n in range(4)]
    await virtual_seconds(0.1)
    assert len(worlds._waiting) == 2
    for request in requests:
        request.cancel()
    await virtual_seconds(0.1)
    assert not worlds._waiting


@pytest.mark.virtual
async def test_requests_of_other_parties_and_malformed_ones_are_rejected_and_fail_nothing(network):
    ends = [network.endpoint(name) for name in "ab"]
    world, _ = await opened(ends)
    outsider, address = network.endpoint("outsider"), ends[0].address
    array = np.zeros(3, np.float32)
    good = pack_header(("k",), [])
    refused = [
        (outsider, OPEN, ["world"], (), "not a member"),
        (outsider, MESSAGE, ["world", good], (), "not a member"),
        (outsider, END, ["world", 0, "bye", "failed"], (), "not a member"),
        (ends[1], OPEN, "world", (), "malformed"),
        (ends[1], MESSAGE, ["world"], (), "malformed"),
        (ends[1], MESSAGE, ["world", b"\xc1"], (), "malformed"),
        (ends[1], MESSAGE, ["world", 7], (), "malformed"),
        (ends[1], MESSAGE, ["world", good], (array,), "malformed"),
        (ends[1], BUFFER, ["world", "one"], (array,), "malformed"),
        (ends[1], BUFFER, ["world", True], (array,), "malformed"),
        (ends[1], BUFFER, ["world", -1], (array,), "malformed"),
        (ends[1], BUFFER, ["world", 16384], (array,), "malformed"),
        (ends[1], BUFFER, ["world", 1], (), "malformed"),
        (ends[1], BUFFER, ["other", 1], (array,), "closed"),
        (ends[1], END, ["world", 2, "bye", "failed"], (), "malformed"),
        (ends[1], END, ["world", 1, "bye", "elsewhere"], (), "malformed"),
        (ends[1], MESSAGE, ["world", good], (np.zeros(MAX_BYTES, np.float32),), "too large"),
    ]
    for sender, topic, note, arrays, reason in refused:
        with pytest.raises(Rejected) as seen:
            await sender.request(address, topic, *arrays, note=note)
        assert seen.value.reason == reason, note
    assert not ends[0].failed.done() and not world.probe(None, ("k",))


async def test_over_tcp_a_long_message_is_activity_of_its_sender_before_it_is_whole():
    async with await open_endpoint("tcp://127.0.0.1:0") as a, await open_endpoint("tcp://127.0.0.1:0") as b:
        addresses = [a.address, b.address]
        one, two = await asyncio.gather(*(Worlds(end, 1 << 30).open("world", addresses) for end in (a, b)))
        sending, seen = asyncio.ensure_future(one.send(1, ("k",), np.zeros(64 << 20, np.uint8))), set()
        while not two.probe(0, ("k",)):
            await asyncio.sleep(0)
            seen.add(one.activity)
        await sending
        assert len(seen) > 3 and (one.activity, two.activity) == (0, 64 << 20)


def test_ranks_meet_over_tcp():
    async def main():
        ends = [await open_endpoint("tcp://127.0.0.1:0") for _ in range(3)]
        worlds = await opened(ends)
        async with asyncio.TaskGroup() as tasks:
            for world in worlds:
                tasks.create_task(world.send((world.rank + 1) % 3, ("round", 1), np.full(5, world.rank)))
            for world in worlds:
                tasks.create_task(arrives(world))
        await worlds[0].close()
        with pytest.raises(PeerLost, match="it closed"):
            await worlds[1].receive(0, ("never",))
        for end in ends:
            await end.close()

    async def arrives(world):
        message = await world.receive((world.rank - 1) % 3, ("round", 1))
        assert (message.blocks[0].numpy() == (world.rank - 1) % 3).all()

    asyncio.run(main())
