"""Faults of a virtual network: what each party sees of them, and when; and that a seed decides all of it."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from pipelined.aio.clock import run_virtual
from tests.virtual_time import virtual_seconds
from transports import Closed
from transports.rpc import Rejected, Response, Unreachable
from transports.rpc.virtual.network import VirtualNetwork

pytestmark = pytest.mark.virtual

DELAY = 0.01
ROUND_TRIP = 2 * DELAY


class World:
    """Two parties, `a` and `b`; `b` answers "echo" with the note, and "wait" never."""

    def __init__(self, **options):
        self.network = VirtualNetwork(**{"delay": DELAY, **options})
        self.told, self.lost = [], []
        self.a, self.b = self.network.endpoint("a"), self.open("b")
        self.a.add_lost_callback(self.lost.append)
        self.clock = self.network.clock("a")

    def open(self, name):
        end = self.network.endpoint(name)
        end.handle("echo", self.echo)
        end.handle("wait", self.wait)
        return end

    async def echo(self, request):
        self.told.append(request.note)
        return Response(note=request.note)

    async def wait(self, request):
        self.told.append("begun")
        try:
            await asyncio.Future()
        finally:
            self.told.append("ended")

    def asking(self, topic="echo", note=None):
        return asyncio.create_task(self.a.request(self.b.address, topic, note=note))


@asynccontextmanager
async def opened(**options):
    world = World(**options)
    yield world
    await world.a.close()
    await world.b.close()


async def test_an_answer_takes_a_round_trip():
    async with opened() as world:
        await world.asking()
        assert world.clock.now() == pytest.approx(ROUND_TRIP)


async def test_the_rate_counts_the_bytes_of_frames_and_arrays():
    async with opened(rate=float(1 << 20)) as world:
        world.b.handle("bulk", world.echo, max_bytes=1 << 20)
        await world.a.request(world.b.address, "bulk", bytes(1 << 20))
        assert 1 + ROUND_TRIP < world.clock.now() < 1 + ROUND_TRIP + 1e-3
        assert (world.a.bytes_sent, world.b.bytes_received) == (1 << 20, 1 << 20)


async def test_a_party_s_line_is_shared_by_all_that_it_talks_with():
    async with opened() as world:
        world.network.set_access_rate("b", float(1 << 20))
        others = [world.network.endpoint(name) for name in "cd"]
        world.b.handle("bulk", world.echo, max_bytes=1 << 20)
        await asyncio.gather(*(end.request(world.b.address, "bulk", bytes(1 << 20)) for end in (world.a, *others)))
        assert 3 + ROUND_TRIP < world.clock.now() < 3 + ROUND_TRIP + 1e-2
        for end in others:
            await end.close()


@pytest.mark.parametrize("scale, at_least", [(1.0, 2 * 1000.0), (1e6, 0.0)])
async def test_header_bytes_are_divided_by_scale(scale, at_least):
    async with opened(scale=scale) as world:
        world.network.set_access_rate("b", 1.0)
        await world.asking(note="x" * 1000)
        took = world.clock.now() - ROUND_TRIP
        assert at_least < took < at_least + 200


async def test_loopback_has_no_delay():
    async with opened(rate=1.0) as world:
        assert (await world.b.request(world.b.address, "echo", note=1)).note == 1
        assert world.clock.now() == 0


async def test_the_killed_end_at_once_and_others_see_it_a_delay_later():
    async with opened() as world:
        asked = world.asking("wait")
        await world.clock.sleep(1.0)
        world.network.kill("b")
        with pytest.raises(Unreachable) as seen:
            await asked
        assert seen.value.sent and world.told == ["begun", "ended"]
        assert world.clock.now() == pytest.approx(1.0 + DELAY)
        assert [party.address for party in world.lost] == [world.b.address]
        with pytest.raises(Unreachable, match="no endpoint listens") as seen:
            await world.asking()
        assert not seen.value.sent


async def test_a_kill_ends_the_requests_the_tasks_and_the_sleep_of_the_killed():
    async with opened() as world:
        clock = world.network.clock("b")
        world.a.handle("wait", world.wait)
        asks = asyncio.create_task(world.b.request(world.a.address, "wait"))
        sleeps = asyncio.create_task(clock.sleep(60))
        runs = world.network.run("b", virtual_seconds(60))
        await world.clock.sleep(1.0)
        world.network.kill("b")
        await asyncio.wait([asks, sleeps, runs])
        assert isinstance(asks.exception(), Unreachable) and isinstance(sleeps.exception(), Closed)
        assert runs.cancelled() and world.clock.now() == pytest.approx(1.0)
        with pytest.raises(Closed):
            await clock.sleep(1)
        await world.network.clock("b").sleep(1)
        assert world.told == ["begun", "ended"]  # the handler of a dead party's request is cancelled, too


async def test_a_reopened_party_has_a_new_incarnation():
    async with opened() as world:
        await world.asking()
        with pytest.raises(ValueError, match="open already"):
            world.network.endpoint("b")
        former = world.b.incarnation
        world.network.kill("b")
        world.b = world.open("b")
        with pytest.raises(Unreachable):
            await world.asking(note="on the old connection")
        assert (await world.asking(note="again")).note == "again"
        assert world.b.incarnation > former and world.lost[0].incarnation == former


async def test_a_frozen_party_neither_sends_nor_receives():
    async with opened() as world:
        await world.asking()
        sleeps = asyncio.create_task(world.network.clock("b").sleep(1.0))
        world.network.freeze("b")
        says = asyncio.create_task(world.b.request(world.a.address, "echo"))
        asked = world.asking(note="held")
        await world.clock.sleep(10.0)
        assert not (sleeps.done() or says.done() or asked.done()) and world.told == [None]
        world.network.thaw("b")
        assert (await asked).note == "held"
        assert world.clock.now() == pytest.approx(10.0 + ROUND_TRIP + DELAY)
        await sleeps
        with pytest.raises(Rejected, match="unknown topic"):
            await says
        assert not world.lost


@pytest.mark.parametrize("ends", [("a", "b"), ("b",), ("a",)])
async def test_what_a_cut_link_holds_back_arrives_in_order_when_it_is_healed(ends):
    async with opened() as world:
        (world.network.cut if len(ends) == 2 else world.network.cut_off)(*ends)
        asks = [world.asking(note=number) for number in range(5)]
        await world.clock.sleep(10.0)
        assert not world.told and not world.lost
        world.network.heal(*ends)
        answers = await asyncio.gather(*asks)
        assert [response.note for response in answers] == world.told == list(range(5))
        assert world.clock.now() == pytest.approx(10.0 + ROUND_TRIP)


async def test_a_party_cut_off_from_all_others_still_reaches_itself():
    async with opened() as world:
        world.network.cut_off("b")
        assert (await world.b.request(world.b.address, "echo", note="alone")).note == "alone"


async def test_a_kill_behind_a_cut_is_not_seen_until_it_is_healed():
    async with opened() as world:
        asked = world.asking("wait")
        await world.clock.sleep(1.0)
        world.network.cut("a", "b")
        world.network.kill("b")
        await world.clock.sleep(10.0)
        assert not asked.done()
        world.network.heal("a", "b")
        with pytest.raises(Unreachable):
            await asked


async def test_a_reset_breaks_the_connection_and_the_next_request_makes_another():
    async with opened() as world:
        heard = []
        world.b.add_lost_callback(heard.append)
        asked = world.asking("wait")
        await world.clock.sleep(1.0)
        world.network.reset("b", "a")
        with pytest.raises(Unreachable, match="reset"):
            await asked
        assert len(world.lost) == len(heard) == 1 and world.told == ["begun", "ended"]
        assert (await world.asking(note="on")).note == "on"


async def test_listeners_see_every_frame_and_may_inject_a_fault():
    async with opened() as world:
        story = []

        def hear(event):
            story.append(str(event))
            if event.kind == "RESPONSE" and event.key == (1,):
                world.network.reset("a", "b")

        world.network.intercept(hear)
        await world.asking(note="first")
        with pytest.raises(Unreachable, match="reset"):
            await world.asking(note="second")
        with pytest.raises(Rejected):
            await world.a.request(world.b.address, "echo", b"too large")
        assert story == [
            "0.010000 a → b: REQUEST echo #0 (0 bytes)",
            "0.020000 b → a: RESPONSE #0 (0 bytes)",
            "0.030000 a → b: REQUEST echo #1 (0 bytes)",
            "0.040000 b → a: RESPONSE #1 (0 bytes)",
            "0.060000 a → b: REQUEST echo #0 (9 bytes)",
            "0.070000 b → a: REJECTED too large #0 (0 bytes)",
        ]


async def test_a_party_frozen_by_a_listener_receives_the_frame_when_thawed():
    async with opened() as world:
        world.network.intercept(lambda event: world.told or world.network.freeze("b"))
        asks = [world.asking(note=number) for number in range(3)]
        await world.clock.sleep(1.0)
        assert not world.told
        world.network.thaw("b")
        await world.clock.sleep(0)
        assert world.told[:1] == [0]
        while len(world.told) < 3:
            await world.clock.sleep(DELAY)
            world.network.thaw("b")
        await asyncio.gather(*asks)
        assert world.told == [0, 1, 2]


async def test_a_party_killed_by_a_listener_does_not_receive_the_frame():
    async with opened() as world:
        world.network.intercept(lambda event: world.network.kill(event.destination))
        with pytest.raises(Unreachable):
            await world.asking()
        assert not world.told


def story(seed):
    """A lively hour between four parties, told as it happened."""
    told = []

    async def main():
        network = VirtualNetwork(seed, delay=DELAY, jitter=DELAY / 2)
        ends = {}

        def open_one(name):
            ends[name] = end = network.endpoint(name)

            async def echo(request):
                told.append((network.clock(name).now(), name, request.sender, request.note))
                return Response(note=request.note)

            end.handle("echo", echo)
            end.add_lost_callback(lambda party: told.append((name, "lost", party)))

        async def ask(name, other, note):
            try:
                told.append((await ends[name].request(f"virtual://{other}", "echo", note=note)).note)
            except Unreachable as error:
                told.append((name, str(error), error.sent))

        names = "abcd"
        for name in names:
            open_one(name)
        clock = network.clock("a")
        for step in range(40):
            asks = [asyncio.create_task(ask(n, m, (step, n))) for n in names for m in names if n != m]
            await clock.sleep(DELAY / 3)
            fault = (None, network.kill, network.freeze, network.thaw, network.cut_off, network.heal)[step % 6]
            if fault is not None:
                fault("bcd"[step % 3])
            if fault == network.kill:
                open_one("bcd"[step % 3])
            if step % 7 == 0:
                network.reset("a", "d")
            if step % 6 == 5:
                for name in names:
                    network.thaw(name)
                    network.heal(name)
                await asyncio.gather(*asks)
        for name in names:
            network.thaw(name)
            network.heal(name)
        await clock.sleep(1)
        for end in ends.values():
            await end.close()

    run_virtual(main())
    return told


def test_a_seed_decides_everything_that_happens():
    assert story(1) == story(1)
    assert story(1) != story(2)
