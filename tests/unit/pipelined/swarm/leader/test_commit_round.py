"""Sums that are kept are disjoint and of this batch; a peer's answer that cannot be read fails the round alone."""

import asyncio
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelined.aio.clock import run_virtual
from pipelined.membership.messaging.fields import Malformed
from pipelined.membership.messaging.reasons import Blame, Reason
from pipelined.state.stages.versions import Version
from pipelined.swarm.leader.commit_round import CommitRound, RoundFailed, choose_sums
from pipelined.swarm.protocol.rounds import Counts, Prepare, Reduce, RoundName, Summed
from pipelined.swarm.records.members import PeerRecord, Phase
from tests.virtual_time import virtual_seconds
from transports.rpc import Rejected

BATCH, NAME, START = 8, RoundName(1, 1), Version(0, "")
LEDGERS = st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.sets(st.integers(0, BATCH + 1)), max_size=6)


def test_disjoint_sums_are_all_kept():
    assert choose_sums({"b": {2, 3}, "a": {0}}, 4) == (("a", "b"), (), {1})


def test_of_two_that_overlap_the_larger_is_kept_and_what_only_the_other_had_is_missing():
    assert choose_sums({"a": {0, 1}, "b": {1, 2, 3}}, 5) == (("b",), ("a",), {0, 4})


def test_equal_ones_are_kept_by_name():
    assert choose_sums({"b": {0, 1}, "a": {1, 2}}, 3) == (("a",), ("b",), {0})


def test_an_index_of_no_batch_spoils_its_sum():
    assert choose_sums({"a": {0, 7}}, 2) == ((), ("a",), {0, 1})


def test_no_peers_cover_nothing():
    assert choose_sums({}, 2) == ((), (), {0, 1})


@given(LEDGERS)
def test_kept_sums_are_disjoint_and_missing_is_the_rest(counted):
    choice = choose_sums(counted, BATCH)
    assert sorted([*choice.kept_peers, *choice.dropped_peers]) == sorted(counted)
    indices = [index for name in choice.kept_peers for index in counted[name]]
    assert sorted([*indices, *choice.missing_microbatches]) == list(range(BATCH))


@given(LEDGERS)
def test_a_dropped_peer_overlaps_the_kept_ones_or_is_of_another_batch(counted):
    choice = choose_sums(counted, BATCH)
    indices = set().union(*(counted[name] for name in choice.kept_peers))
    for name in choice.dropped_peers:
        assert counted[name] & indices or not counted[name] <= set(range(BATCH))


PEER = PeerRecord("p0", "virtual://p0", 1, 0, Phase.SERVING, "m")


def counts(index, loss=1.0):
    return Counts(0.5, np.array([index]), np.array([loss]))


class MemberClient:
    """Answers for one peer, which counted all microbatches and has this reply to `Reduce`."""

    def __init__(self, summed):
        self._summed = summed

    async def request(self, who, request, limit=None):
        if not isinstance(request, Reduce):
            return counts(0)
        if isinstance(self._summed, Exception):
            raise self._summed
        return self._summed


class Refusing(MemberClient):
    """Answers for peers that are all prepared; each refuses to sum with its own refusal, after so many seconds."""

    def __init__(self, rejections):
        self._refusals = rejections

    async def request(self, who, request, limit=None):
        if isinstance(request, Prepare):
            await virtual_seconds(0.1)
            return await super().request(who, request)
        seconds, rejection = self._refusals[who.name]
        await virtual_seconds(seconds)
        raise rejection


def lost(by, member):
    return Rejected("lost", by=by, member=member, why="unexpected part")


@pytest.mark.parametrize(
    "rejections, blamed",
    [
        ({"a": (0.0, lost("a", "b")), "b": (9.0, Rejected("late")), "c": (0.05, lost("c", "b"))}, ["ab", "bc"]),
        ({"a": (0.0, lost("b", "c")), "b": (0.05, lost("b", "c")), "c": (9.0, Rejected("late"))}, ["bc", "bc"]),
        ({"a": (0.0, lost("b", "c")), "b": (9.0, Rejected("late")), "c": (9.0, Rejected("late"))}, ["ab"]),
        ({"a": (0.0, Rejected("no memory")), "b": (9.0, Rejected("late")), "c": (9.0, Rejected("late"))}, ["a"]),
        ({"a": (0.0, lost("x", "y")), "b": (9.0, Rejected("late")), "c": (9.0, Rejected("late"))}, ["a"]),
        ({"a": (0.0, lost(7, None)), "b": (9.0, Rejected("late")), "c": (9.0, Rejected("late"))}, ["a"]),
    ],
    ids=[
        "two pairs",
        "passed on and confirmed",
        "passed on by one alone",
        "one by itself",
        "it names strangers",
        "it names no members",
    ],
)
def test_a_failed_sum_names_the_members_between_which_it_failed(rejections, blamed):
    """The first refusal may come from a member that is at no fault: the others have a moment to name theirs."""
    peers = [PeerRecord(name, f"virtual://{name}", 1, 0, Phase.SERVING, "m") for name in "abc"]

    async def take():
        round_ = CommitRound(NAME, START, 1, [peers], Refusing(rejections))
        prepared = await round_.prepare()
        began = asyncio.get_running_loop().time()
        with pytest.raises(RoundFailed, match=r"^a: "):
            await round_.reduce(prepared, 0.0)
        assert asyncio.get_running_loop().time() - began == pytest.approx(0.1)
        assert ["".join(sorted(each.members)) for each in round_.log.failures] == blamed

    run_virtual(take())


def test_a_reply_that_cannot_be_read_fails_the_attempt():
    async def take():
        round_ = CommitRound(NAME, START, 1, [[PEER]], MemberClient(Malformed("no square")))
        prepared = await round_.prepare()
        assert not prepared.chosen[0].missing_microbatches
        with pytest.raises(RoundFailed, match="p0"):
            await round_.reduce(prepared, 0.0)

    run_virtual(take())


def test_of_many_members_that_refuse_a_failed_attempt_reports_a_few_and_counts_the_others():
    peers = [PeerRecord(name, f"virtual://{name}", 1, 0, Phase.SERVING, "m") for name in "abcdef"]

    async def take():
        round_ = CommitRound(NAME, START, 1, [peers], Refusing({peer.name: (0.0, Rejected("no")) for peer in peers}))
        prepared = await round_.prepare()
        with pytest.raises(RoundFailed, match=r"^\w: no; \w: no; \w: no; and 3 more$"):
            await round_.reduce(prepared, 0.0)

    run_virtual(take())


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -1.7e308])
def test_the_sum_of_a_peer_with_a_loss_beyond_reason_is_left_out(loss):
    """Two such losses have no sum as a float: the leader would end on them, and each leader after it."""

    class Odd(MemberClient):
        async def request(self, who, request, limit=None):
            return counts(0, loss)

    async def take():
        round_ = CommitRound(NAME, START, 1, [[PEER]], Odd(None))
        (sums,) = (await round_.prepare()).chosen
        assert sums.missing_microbatches == {0} and [each.members for each in round_.log.failures] == [{"p0"}]

    run_virtual(take())


class Summing(MemberClient):
    """Answers for peers of one stage that hold one total and say these squares of its norm."""

    def __init__(self, squares):
        self._squares = squares

    async def request(self, who, request, limit=None):
        if isinstance(request, Reduce):
            return Summed(self._squares[who.name], b"x" * 16)
        return counts(ord(who.name) - ord("a"))


@pytest.mark.parametrize(
    "squares, blamed",
    [
        ({"a": 2.0, "b": 2.0, "c": 2.0}, []),
        ({"a": 2.0, "b": 2.0, "c": math.nextafter(2.0, 3.0)}, ["ac", "bc"]),
        ({"a": 3.0, "b": 2.0, "c": 2.0}, ["ab", "ac"]),
        ({"a": 3.0, "b": 2.0, "c": 4.0}, ["ab", "ac", "bc"]),
    ],
    ids=["alike", "one by a bit", "the first", "all"],
)
def test_members_of_one_stage_that_say_different_squares_fail_the_attempt(squares, blamed):
    peers = [PeerRecord(name, f"virtual://{name}", 1, 0, Phase.SERVING, "m") for name in squares]

    async def take():
        round_ = CommitRound(NAME, START, 3, [peers], Summing(squares))
        prepared = await round_.prepare()
        if blamed:
            with pytest.raises(RoundFailed, match=r"squares .* differ at stage 0 \(lowest: 2.0, highest: "):
                await round_.reduce(prepared, 0.0)
        else:
            assert (await round_.reduce(prepared, 0.0)).squares == [2.0]
        assert ["".join(sorted(each.members)) for each in round_.log.failures] == blamed

    run_virtual(take())


@pytest.mark.parametrize("reason", Reason)
def test_a_peer_that_is_not_prepared_is_at_fault_unless_neither_end_is(reason):
    async def take():
        round_ = CommitRound(NAME, START, 1, [[PEER]], Refusing({}))

        async def request(who, request, limit=None):
            raise Rejected(reason)

        round_._client.request = request
        await round_.prepare()
        assert bool(round_.log.failures) is (reason.blame is not Blame.NEITHER)

    run_virtual(take())
