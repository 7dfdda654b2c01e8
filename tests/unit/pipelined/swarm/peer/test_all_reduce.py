"""All members of a sum end with the same bits, or with nothing changed; and each sends and receives its share."""

import asyncio

import numpy as np
import pytest

from pipelined.aio.clock import VirtualClock, run_virtual
from pipelined.aio.tasks import Spread
from pipelined.membership.messaging.messages import send
from pipelined.membership.messaging.reasons import Reason
from pipelined.swarm.peer import all_reduce
from pipelined.swarm.peer.all_reduce import AllReduce
from pipelined.swarm.protocol.rounds import RoundMember, RoundName, RoundReport, SendPart
from pipelined.swarm.stages.swarm_stage import Coding
from tests.virtual_time import virtual_seconds
from transports.rpc import Rejected, Response
from transports.rpc.virtual.network import VirtualNetwork, address_of

pytestmark = pytest.mark.virtual

NAME = RoundName(1, 1)
PIECE = 1 << 10


def served(end, take):
    """Have an endpoint answer parts with `take`, as a peer does."""

    async def respond(request):
        return (await take(SendPart.parse(request)[0], request.sender)).response()

    end.handle(SendPart.topic, respond, PIECE)


def at_once():
    return Spread(VirtualClock())


class Members:
    """Members with random sums, and their parts in one round."""

    def __init__(self, count, size, codec="", dtype=np.float32, maxima=0):
        self.network = VirtualNetwork(delay=1e-3)
        names = [f"p{at}" for at in range(count)]
        self.ends = [self.network.endpoint(name) for name in names]
        members = [RoundMember(name, address_of(name), 1) for name in names]
        self.sums = [np.random.default_rng(at).normal(size=size).astype(dtype) for at in range(count)]
        coding = Coding(codec, threads=False)
        self.kept = [sums.copy() for sums in self.sums]
        self.rounds = [
            AllReduce(end, NAME, members, at, sums, coding=coding, chunk_bytes=PIECE, maxima=maxima)
            for at, (end, sums) in enumerate(zip(self.ends, self.sums, strict=True))
        ]
        self.nbytes = 0
        self.network.intercept(self._weigh)
        for end, part in zip(self.ends, self.rounds, strict=True):
            served(end, part.receive_part)

    def _weigh(self, passing):
        self.nbytes += passing.nbytes if passing.kind in ("REQUEST", "RESPONSE") else 0

    async def run(self, seconds=0.0):
        parts = [part.run(Spread(VirtualClock(), seconds)) for part in self.rounds]
        return await asyncio.gather(*parts, return_exceptions=True)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
async def test_all_hold_the_same_bits_and_the_sum_in_float64_to_rounding(count, size, dtype):
    stage = Members(count, size, dtype=dtype)
    totals = await stage.run()
    assert len({total.tobytes() for total in totals}) == 1
    exact = np.sum(np.float64(stage.kept), axis=0)
    bound = count * np.finfo(dtype).eps * np.sum(np.abs(np.float64(stage.kept)), axis=0)
    assert (np.abs(totals[0] - exact) <= bound).all()


@pytest.mark.parametrize("maxima", [1, 130, 700, 1000])
async def test_the_last_values_are_the_larger_of_all_members_whatever_chunk_they_lie_in(maxima):
    stage = Members(3, 1000, dtype=np.float64, maxima=maxima)
    total, *_ = await stage.run()
    added = 1000 - maxima
    assert np.array_equal(total[added:], np.max(stage.kept, axis=0)[added:])
    assert total[:added] == pytest.approx(np.sum(stage.kept, axis=0)[:added])


@pytest.mark.parametrize("count", [1, 2, 3, 5])
async def test_a_member_sends_its_sum_but_its_own_slice_and_its_slice_to_all_others(count):
    stage = Members(count, 3000)
    await stage.run()
    each = 2 * (count - 1) / count * stage.sums[0].nbytes
    assert stage.nbytes == count * each


@pytest.mark.parametrize("count", [4, 16])
async def test_what_an_owner_gathers_is_bounded_however_many_wait_for_the_last(count, monkeypatch):
    """Four chunks of 4 MiB from each come to 2 GiB where 133 members sum."""
    window = 16 << 10
    monkeypatch.setattr(all_reduce, "MAX_GATHERED_BYTES", window)

    def gathered(part):
        return sum(brought.nbytes for chunk in part._chunks.values() for brought in chunk.parts.values())

    stage, sizes = Members(count, 8192), []
    *first, last = stage.rounds
    stage.network.intercept(lambda _: sizes.append(gathered(stage.rounds[0])))
    summing = [asyncio.ensure_future(part.run(at_once())) for part in first]
    await virtual_seconds(0.1)
    totals = [await last.run(at_once()), *await asyncio.gather(*summing)]
    assert len({total.tobytes() for total in totals}) == 1
    assert max(sizes) == window * (count - 1) // count


async def test_with_a_codec_all_hold_the_same_bits_with_fewer_sent():
    stage = Members(3, 9000, "blockwise8")
    totals = await stage.run()
    assert len({total.tobytes() for total in totals}) == 1
    plain = Members(3, 9000)
    exact, *_ = await plain.run()
    assert not np.array_equal(totals[0], exact)
    assert np.square(totals[0] - exact).mean() < 0.01 * np.square(exact).mean()
    assert stage.nbytes < plain.nbytes / 3


@pytest.mark.parametrize("frames", range(1, 40, 3))
async def test_a_round_that_is_aborted_at_any_frame_ends_for_its_member_and_changes_nothing(frames):
    stage = Members(3, 3000)
    frames_left = [frames]

    def hear(passing):
        frames_left[0] -= 1
        if frames_left[0] == 0:
            stage.rounds[1].abort("enough")

    stage.network.intercept(hear)
    mine = asyncio.ensure_future(stage.rounds[1].run(at_once()))
    others = [asyncio.ensure_future(stage.rounds[at].run(at_once())) for at in (0, 2)]
    with pytest.raises(Rejected, match="enough"):
        await mine
    for at in (0, 2):
        stage.rounds[at].abort("told by the leader")
    await asyncio.gather(*others, return_exceptions=True)
    assert all(np.array_equal(*pair) for pair in zip(stage.sums, stage.kept, strict=True))


@pytest.mark.parametrize("note", [None, {}, [], [7], [[1]], [[2, None]], [[1, 7]], [[1, None]]])
async def test_an_unreadable_reply_ends_the_round_and_no_process(note):
    async def respond(request):
        return Response((np.zeros(1),), note)

    stage = Members(2, 3000)
    stage.ends[1].handle(SendPart.topic, respond, PIECE)
    with pytest.raises(Rejected):
        await stage.rounds[0].run(at_once())


def failed_between(rejection):
    return rejection.reason, rejection.facts["by"], rejection.facts["member"]


async def test_a_member_that_is_lost_is_named_with_the_member_that_lost_it():
    stage = Members(2, 3000)
    stage.network.kill("p1")
    with pytest.raises(Rejected) as refused:
        await stage.rounds[0].run(at_once())
    assert failed_between(refused.value) == ("lost", "p0", "p1")


async def test_members_that_a_round_ends_for_name_the_two_between_which_it_failed():
    """p1 cannot reach p2; p0 reaches both, and learns of it from p1 alone."""

    async def take(request, sender):
        if request.position == 1:
            raise Rejected(Reason.UNEXPECTED_PART)
        return await asyncio.get_running_loop().create_future()

    stage = Members(3, 3000)
    served(stage.ends[2], take)
    first, second = (asyncio.ensure_future(stage.rounds[at].run(at_once())) for at in (0, 1))
    for task in (first, second):
        with pytest.raises(Rejected) as refused:
            await task
        assert failed_between(refused.value) == ("lost", "p1", "p2")


async def test_a_round_aborted_before_it_began_does_not_begin():
    stage = Members(2, 3000)
    stage.rounds[0].abort("too late")
    with pytest.raises(Rejected, match="too late"):
        await stage.rounds[0].run(at_once())


class SlowCoding(Coding):
    """Decodes a second later, as in a thread that is busy."""

    async def unpack(self, *coded):
        return await virtual_seconds(1.0, await super().unpack(*coded))


@pytest.mark.parametrize(
    "end", [lambda part, _: part.abort("enough"), lambda _, run: run.cancel()], ids=["abort", "cancel"]
)
async def test_a_part_that_is_decoded_after_its_round_ended_is_refused_and_ends_no_process(end):
    """The last part of a chunk comes while another failure ends the round."""
    stage = Members(2, 8)
    stage.rounds[0]._coding = SlowCoding(threads=False)
    start, size = chunk_of(stage, 0)
    owner = asyncio.ensure_future(stage.rounds[0].run(at_once()))
    bringing = asyncio.ensure_future(bring(stage, 1, 0, start, np.zeros(size, np.float32)))
    await virtual_seconds(0.5)
    end(stage.rounds[0], owner)
    assert await bringing == "round aborted"
    await asyncio.wait([owner])
    assert not stage.ends[0].failed.done()


async def bring(stage, bringer, owner, start, part, position=None):
    """A member asks an owner to add a part that is not of its round; what it is refused with, "" if it is not."""
    request = SendPart(NAME, bringer if position is None else position, start, ((part,), None))
    try:
        await send(stage.ends[bringer], address_of(f"p{owner}"), request)
    except Rejected as rejection:
        return rejection.reason
    return ""


def chunk_of(stage, owner):
    """Where the first chunk of an owner begins, and how long it is."""
    part = stage.rounds[owner]
    start = int(part._bounds[owner])
    span = part._span(start)
    return start, span.stop - span.start


def foreign(stage):
    """p2 brings a part in the name of p1."""
    start, size = chunk_of(stage, 0)
    return bring(stage, 2, 0, start, np.full(size, 9e9, np.float32), position=1)


def of_no_chunk(stage):
    """p2 brings a part that begins between two chunks."""
    start, size = chunk_of(stage, 0)
    return bring(stage, 2, 0, start + 1, np.full(size, 9e9, np.float32))


def of_another_slice(stage):
    """p2 brings p0 a part that p1 owns."""
    start, size = chunk_of(stage, 1)
    return bring(stage, 2, 0, start, np.full(size, 9e9, np.float32))


@pytest.mark.parametrize("bad", [foreign, of_no_chunk, of_another_slice], ids=lambda bad: bad.__name__)
@pytest.mark.parametrize("late", [False, True], ids=["before the round", "after it"])
async def test_a_part_that_is_not_the_bringers_own_is_refused_and_the_sum_is_right(bad, late):
    right = (await Members(3, 3000).run())[0]
    stage = Members(3, 3000)
    refused = [] if late else [await bad(stage)]
    totals = await stage.run()
    refused += [await bad(stage)] if late else []
    assert refused == ["unexpected part"]
    assert all(np.array_equal(total, right) for total in totals)


@pytest.mark.parametrize("frames", [1, 8, 20, 10**9], ids=["at once", "amid", "late", "after the round"])
async def test_a_second_part_of_one_member_is_refused_and_the_sum_is_right(frames):
    """The first part that came counts, before it is added and after."""

    right = (await Members(3, 3000).run())[0]
    stage, frames_left, second_parts = Members(3, 3000), [frames], []
    start, size = chunk_of(stage, 0)

    async def twice():
        return await bring(stage, 2, 0, start, np.full(size, 9e9, np.float32))

    def hear(passing):
        first = passing.kind == "REQUEST" and passing.source == "p2" and passing.destination == "p0"
        frames_left[0] -= 1
        if first and frames_left[0] <= 0 and not second_parts:
            second_parts.append(asyncio.ensure_future(twice()))

    stage.network.intercept(hear)
    totals = await stage.run()
    second_parts = second_parts or [asyncio.ensure_future(twice())]
    assert await second_parts[0] == "unexpected part"
    assert all(np.array_equal(total, right) for total in totals)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
async def test_a_part_that_is_not_finite_ends_the_round_and_its_owner_names_the_member_that_brought_it(bad):
    """p2 says nothing of it: what it sends is not what it holds."""

    stage = Members(3, 3000)
    start, size = chunk_of(stage, 0)
    owner = asyncio.ensure_future(stage.rounds[0].run(at_once()))
    assert await bring(stage, 2, 0, start, np.full(size, bad, np.float32)) == "not finite"
    with pytest.raises(Rejected) as refused:
        await owner
    assert failed_between(refused.value)[1:] == ("p0", "p2")


@pytest.mark.parametrize("part", [np.zeros(3, np.float32), np.zeros(7, np.float64), np.zeros((1, 8), np.float32)])
async def test_a_part_of_another_shape_ends_the_round_and_its_owner_names_the_member_that_brought_it(part):
    stage = Members(3, 3000)
    owner = asyncio.ensure_future(stage.rounds[0].run(at_once()))
    assert await bring(stage, 2, 0, chunk_of(stage, 0)[0], part) == "unexpected part"
    with pytest.raises(Rejected) as refused:
        await owner
    assert failed_between(refused.value)[1:] == ("p0", "p2")


@pytest.mark.parametrize("at", [0, -1], ids=["of its own slice", "of another's slice"])
@pytest.mark.parametrize("codec", ["", "blockwise8", "fp16"])
async def test_a_member_with_sums_that_are_not_finite_says_so_itself(at, codec):
    stage = Members(2, 3000, codec)
    stage.sums[0][at] = np.nan
    first, *_ = await stage.run()
    assert first.reason == "part not finite"


@pytest.mark.parametrize("value", [60000.0, 70000.0], ids=["of the total", "of a part"])
async def test_finite_sums_beyond_the_codec_are_refused_as_that(value):
    stage = Members(2, 3000, "fp16")
    for sums in stage.sums:
        sums[0] = value
    assert "beyond codec" in [getattr(each, "reason", "") for each in await stage.run()]


PIECE_S = 0.01
"""What a chunk takes on a member's line."""


@pytest.mark.parametrize("count", [2, 5])
def test_a_sum_that_is_spread_lets_others_through_and_takes_as_long_as_it_may(count):
    """At full rate four chunks for each other member wait on the line before a new message; spread out, one each."""
    chunks = 20

    async def longest_wait(seconds):
        """Also the sum's own seconds."""
        stage = Members(count, count * chunks * PIECE // 4)
        for at in range(count):
            stage.network.set_access_rate(f"p{at}", PIECE / PIECE_S)
        trainer = stage.network.endpoint("trainer")
        stage.ends[0].handle("forward", lambda request: asyncio.sleep(0, Response()))
        clock, waits = VirtualClock(), []
        began, summing = clock.now(), asyncio.ensure_future(stage.run(seconds))
        while not summing.done():
            asked = clock.now()
            await trainer.request(address_of("p0"), "forward")
            waits.append(clock.now() - asked)
            await clock.sleep(PIECE_S)
        assert all(isinstance(total, np.ndarray) for total in summing.result())
        return max(waits), clock.now() - began

    others = count - 1
    wait, took = run_virtual(longest_wait(0.0))
    assert wait > 4 * others * PIECE_S and took < 1.5 * 2 * others * chunks * PIECE_S
    wait, took = run_virtual(longest_wait(6.0))
    assert wait < 2 * count * PIECE_S and 5.0 < took < 6.5


def test_a_member_says_for_which_others_it_waits_and_since_when():
    async def add():
        stage = Members(3, 3)
        assert stage.rounds[0].awaited == RoundReport((), {"p1": 0.0, "p2": 0.0}, {})
        two = [asyncio.ensure_future(part.run(at_once())) for part in stage.rounds[:2]]
        await virtual_seconds(5.0)
        awaited = stage.rounds[0].awaited
        assert awaited == RoundReport((), {"p2": 5.0}, {"p1": 5.0, "p2": 5.0})
        assert stage.rounds[2].awaited.parts == {}, "it lacks its own part alone"
        await stage.rounds[2].run(at_once())
        await asyncio.gather(*two)
        assert stage.rounds[0].awaited == RoundReport()

    run_virtual(add())


def test_an_owner_that_answered_some_chunks_is_awaited_since_the_last():
    async def add():
        stage, asked = Members(2, 8 * PIECE), []

        async def take(request, sender):
            asked.append(request)
            await virtual_seconds(4.0 if len(asked) <= 2 else 1e9)
            return await stage.rounds[1].receive_part(request, sender)

        served(stage.ends[1], take)
        running = [asyncio.ensure_future(part.run(at_once())) for part in stage.rounds]
        await virtual_seconds(10.0)
        assert stage.rounds[0].awaited.totals == {"p1": pytest.approx(6.0, abs=0.1)}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    run_virtual(add())
