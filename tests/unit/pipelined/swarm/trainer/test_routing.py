"""A peer receives microbatches in proportion to its speed, with any other trainers, and after any history."""

import math
from collections import Counter
from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelined.membership.bans import AnnouncedMember
from pipelined.swarm.trainer.routing import MIN_HEAP, Router
from tests.unit.pipelined.swarm.trainer.queueing import Fleet, shares

SPEEDS = [[1, 2], [1, 1, 1, 4], [1, 2, 4, 8]]


def names(count):
    return [f"peer-{number}" for number in range(count)]


def wired(seconds, stage=0, stages=1, seed=0):
    """A router that has seen each peer answer a forward once."""
    router = Router(stages, seed)
    for name, each in zip(names(len(seconds)), seconds, strict=True):
        router.add(stage, AnnouncedMember(name, 1))
        router.observe(AnnouncedMember(name, 1), "forward", each)
    return router


def expected_s(router, party, which):
    """Seconds that the router expects of a member's reply."""
    return router._queue(party).times.expected_s(party.address, which)


def picked(router, count, which="forward", stage=0, now=0.0):
    return Counter(party.address for _ in range(count) if (party := router.pick(stage, which, now)))


@pytest.mark.parametrize("speeds", SPEEDS)
def test_shares_are_proportional_to_measured_speeds(speeds):
    turns = picked(wired([1 / speed for speed in speeds]), 10 * sum(speeds))
    assert [turns[name] for name in names(len(speeds))] == pytest.approx([10 * speed for speed in speeds], abs=1)


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=8), st.integers(0, 200), st.integers())
def test_no_peer_is_ever_more_than_one_turn_ahead_of_another(seconds, turns, seed):
    counts = picked(wired(seconds, seed=seed), turns)
    loads = [(counts[name] * each, each) for name, each in zip(names(len(seconds)), seconds, strict=True)]
    least = min(load for load, _ in loads)
    assert all(load - each <= least + 1e-9 for load, each in loads)


@pytest.mark.parametrize("trainers", [1, 2, 5])
@pytest.mark.parametrize("speeds", SPEEDS)
def test_peers_with_queues_get_requests_in_proportion_to_their_speeds(speeds, trainers):
    of = names(len(speeds))
    fleet = Fleet(dict(zip(of, speeds, strict=True)), trainers)
    fleet.run(100 * sum(speeds))
    ideal = [100 * speed / sum(speeds) for speed in speeds]
    assert shares(fleet.run(200 * sum(speeds)), of) == pytest.approx(ideal, abs=1.5)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.sampled_from([1, 2, 3, 5, 8]), min_size=2, max_size=6), st.integers(1, 4))
def test_queues_keep_every_peer_busy(speeds, trainers):
    of = names(len(speeds))
    fleet = Fleet(dict(zip(of, speeds, strict=True)), trainers, in_flight=4 * len(speeds))
    fleet.run(50 * sum(speeds))
    before = fleet.now
    answers = 50 * sum(speeds)
    fleet.run(answers)
    assert answers / (fleet.now - before) > 0.97 * sum(speeds)


def test_two_passes_are_measured_apart():
    router = wired([1.0])
    party = AnnouncedMember("peer-0", 1)
    assert expected_s(router, party, "backward") == 2.5, "until one was measured"
    router.observe(party, "backward", 4.0)
    assert (expected_s(router, party, "forward"), expected_s(router, party, "backward")) == (1.0, 4.0)


def test_a_backward_counts_for_as_many_forwards_as_it_takes_the_time_of():
    router = wired([1.0, 1.0])
    first = router.pick(0, "backward", 0.0)
    after = [router.pick(0, "forward", 0.0) for _ in range(2)]
    assert first not in after, "2.5 seconds were added to it"


def test_the_average_is_of_the_answers_alone():
    router = wired([2.0])
    router.observe(AnnouncedMember("peer-0", 1), "forward", 4.0)
    expected = (0.9 * 0.1 * 2.0 + 0.1 * 4.0) / (0.9 * 0.1 + 0.1)
    assert expected_s(router, AnnouncedMember("peer-0", 1), "forward") == pytest.approx(expected)


def test_a_newcomer_is_expected_to_be_like_the_median_of_its_stage():
    router = wired([1.0, 2.0, 9.0])
    router.add(0, AnnouncedMember("new", 1))
    assert expected_s(router, AnnouncedMember("new", 1), "forward") == 2.0
    assert expected_s(router, AnnouncedMember("new", 1), "backward") == 5.0


@pytest.mark.parametrize("before", [0, 10, 10_000])
def test_a_newcomer_is_not_flooded(before):
    router = wired([1.0] * 4)
    picked(router, before)
    router.add(0, AnnouncedMember("new", 1))
    assert picked(router, 50)["new"] in (10, 11)


def test_a_newcomer_to_many_trainers_soon_has_its_share_and_no_more():
    fleet = Fleet(dict.fromkeys(names(4), 1.0), trainers=5)
    fleet.run(1000)
    fleet.speeds["new"] = 1.0
    fleet.join("new")
    soon = fleet.run(100)["new"]
    assert soon < 1.5 * 100 / 5
    assert shares(fleet.run(1000), ["new"])[0] == pytest.approx(20, abs=1.5)


def test_unmeasured_peers_take_turns():
    router = Router(1)
    for name in names(5):
        router.add(0, AnnouncedMember(name, 1))
    assert set(picked(router, 15).values()) == {3}


def test_a_slowed_down_peer_loses_its_share_and_regains_it():
    of = names(4)
    fleet = Fleet(dict.fromkeys(of, 4.0))
    assert shares(fleet.run(1000), of)[0] == pytest.approx(25, abs=1.5)
    fleet.speeds["peer-0"] = 1.0
    fleet.run(300)
    assert shares(fleet.run(1000), of)[0] == pytest.approx(100 / 13, abs=1.5)
    fleet.speeds["peer-0"] = 4.0
    fleet.run(300)
    assert shares(fleet.run(1000), of)[0] == pytest.approx(25, abs=1.5)


def test_each_trainer_asks_more_of_the_peers_that_are_near():
    of, near = names(4), {(0, "peer-0"), (0, "peer-1"), (1, "peer-2"), (1, "peer-3")}
    away = {(trainer, name): 0.0 if (trainer, name) in near else 0.5 for trainer in range(2) for name in of}
    fleet = Fleet(dict.fromkeys(of, 10.0), trainers=2, in_flight=4, away=away)
    fleet.run(500)
    asked = [Counter(), Counter()]
    for trainer, router in enumerate(fleet.wirings):
        pick = router.pick
        router.pick = lambda *args, pick=pick, trainer=trainer: _noted(asked[trainer], pick(*args))
    fleet.run(1000)
    for trainer in range(2):
        at_home = sum(asked[trainer][name] for name in of if (trainer, name) in near)
        assert at_home > 0.6 * asked[trainer].total()


def _noted(asked, party):
    asked[party.address] += 1
    return party


def test_the_peer_with_fewest_open_requests_is_picked_first():
    router, answers = wired([1.0, 1.5]), ExitStack()
    for _ in range(2):
        answers.enter_context(router.under_way(AnnouncedMember("peer-0", 1)))
        assert picked(router, 3) == {"peer-1": 3}
    answers.close()
    assert picked(router, 8)["peer-0"] > 4, "what was picked out of turn counts, too"


def test_requests_before_an_announcement_do_not_count():
    router, answers = wired([1.0, 1.0]), ExitStack()
    answers.enter_context(router.under_way(AnnouncedMember("peer-0", 1)))
    router.add(0, AnnouncedMember("peer-0", 2))
    assert picked(router, 10) == {"peer-0": 5, "peer-1": 5}
    answers.close()
    assert picked(router, 10) == {"peer-0": 5, "peer-1": 5}


def test_a_heap_stays_as_small_as_its_stage():
    router, answers = wired([1.0] * 4), ExitStack()
    for _ in range(1000):
        answers.enter_context(router.under_way(router.pick(0, "forward", 0.0)))
        answers.close()
    assert len(router._queues[0]._heap) <= MIN_HEAP + 8


def test_trainers_of_different_seeds_begin_with_different_peers():
    def first(seed):
        return [router.pick(0, "forward", 0.0).address for router in [wired([1.0] * 8, seed=seed)] for _ in range(8)]

    assert first("a") == first("a") != first("b")


def test_a_banned_peer_is_picked_again_only_once_it_has_announced_itself_again():
    router = wired([1.0, 1.0])
    until = router.ban(AnnouncedMember("peer-0", 1), now=10.0)
    assert picked(router, 10, now=1e6) == {"peer-1": 10}
    router.add(0, AnnouncedMember("peer-0", 1))
    assert picked(router, 10, now=1e6) == {"peer-1": 10}, "announced itself with nothing new"
    router.add(0, AnnouncedMember("peer-0", 2))
    assert picked(router, 10, now=until - 0.1) == {"peer-1": 10}, "its time is not up"
    back = picked(router, 10, now=until)
    assert back["peer-0"] in (5, 6), "it stands where the next one does"


def test_bans_that_follow_one_another_last_twice_as_long_each():
    router, now, lasted = wired([1.0]), 0.0, []
    for revision in range(1, 12):
        router.add(0, AnnouncedMember("peer-0", revision))
        until = router.ban(AnnouncedMember("peer-0", revision), now)
        lasted.append(until - now)
        now = until
    assert lasted == pytest.approx([min(2.0**turn, 300) for turn in range(11)])
    router.add(0, AnnouncedMember("peer-0", 12))
    assert router.ban(AnnouncedMember("peer-0", 12), now + 301) == now + 302, "it behaved for as long as the last ban"


def test_several_failures_under_one_announcement_are_one_ban():
    router = wired([1.0])
    assert router.ban(AnnouncedMember("peer-0", 1), 0.0) == router.ban(AnnouncedMember("peer-0", 1), 0.9) == 1.0
    assert router.banned(0.5) == {"peer-0": 0.5}


def test_a_ban_is_listed_until_its_time_is_up_and_the_peer_has_announced_itself_again():
    router = wired([1.0])
    router.ban(AnnouncedMember("peer-0", 1), 0.0)
    assert router.banned(5.0) == {"peer-0": 0.0}, "its time is up, and it has not announced itself again"
    router.add(0, AnnouncedMember("peer-0", 2))
    assert router.banned(0.5) == {"peer-0": 0.5} and router.banned(1.0) == {}


def test_bans_of_peers_that_are_gone_are_forgotten():
    router = wired([1.0])
    for number in range(100):
        party, now = AnnouncedMember(f"passing-{number}", 1), 10.0 * number
        router.add(0, party)
        router.ban(party, now)
        router.remove(party)
    assert len(router._bans._bans) < 5


def test_what_a_peer_is_blamed_for_late_does_not_count_after_its_next_announcement():
    router = wired([1.0])
    router.add(0, AnnouncedMember("peer-0", 2))
    router.ban(AnnouncedMember("peer-0", 1), 0.0)
    router.observe(AnnouncedMember("peer-0", 1), "forward", 99.0)
    router.remove(AnnouncedMember("peer-0", 1))
    assert router.pick(0, "forward", 0.0) == AnnouncedMember("peer-0", 2)
    assert expected_s(router, AnnouncedMember("peer-0", 2), "forward") == 1.0, "the machine is the same as before"


def test_a_departed_peer_is_not_picked_and_its_replies_are_ignored():
    router = wired([1.0, 1.0])
    router.remove(AnnouncedMember("peer-0", 1))
    router.observe(AnnouncedMember("peer-0", 1), "forward", 1.0)
    assert picked(router, 4) == {"peer-1": 4}
    assert AnnouncedMember("peer-0", 1) not in [*router.peers(0)]


def test_a_peer_that_moved_serves_its_new_stage_alone():
    router = wired([1.0, 1.0], stages=2)
    router.add(1, AnnouncedMember("peer-0", 1))
    assert (picked(router, 3), picked(router, 2, stage=1)) == ({"peer-1": 3}, {"peer-0": 2})
    assert [[party.address for party in router.peers(stage)] for stage in range(2)] == [["peer-1"], ["peer-0"]]


def test_the_moment_at_which_a_stage_has_a_peer_again():
    router = Router(1)
    assert router.pick(0, "forward", 0.0) is None and router.available_at(0, 0.0) == math.inf
    router.add(0, AnnouncedMember("peer-0", 1))
    assert router.available_at(0, 3.0) == 3.0
    router.ban(AnnouncedMember("peer-0", 1), 3.0)
    assert router.pick(0, "forward", 9.0) is None and router.available_at(0, 3.0) == math.inf
    router.add(0, AnnouncedMember("peer-0", 2))
    assert router.available_at(0, 3.0) == 4.0 and router.pick(0, "forward", 4.0) == AnnouncedMember("peer-0", 2)


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_times_that_cannot_be_are_refused(seconds):
    with pytest.raises(ValueError, match="peer-0 cannot have replied"):
        wired([1.0]).observe(AnnouncedMember("peer-0", 1), "forward", seconds)


def test_a_stage_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="cannot serve stage 3 of 2"):
        Router(2).add(3, AnnouncedMember("a", 1))


@given(st.data())
def test_whatever_happens_only_members_that_are_not_banned_are_picked(data):
    """A plain model beside it: the members, the last failure of each announcement, and the end of its ban."""
    router, members, banned, now = Router(2, seed=1), {}, {}, 0.0
    for _ in range(data.draw(st.integers(1, 40))):
        now += data.draw(st.sampled_from([0.0, 0.5, 5.0]))
        address = data.draw(st.sampled_from("abc"))
        party = AnnouncedMember(address, data.draw(st.integers(1, 3)))
        match data.draw(st.sampled_from(["add", "remove", "ban", "observe", "pick"])):
            case "add":
                stage = data.draw(st.integers(0, 1))
                router.add(stage, party)
                members[address] = (stage, party)
            case "remove":
                router.remove(party)
                if members.get(address, (0, None))[1] == party:
                    del members[address]
            case "ban":
                if address not in members or members[address][1] == party:
                    until = router.ban(party, now)
                    if banned.get(address, (None, 0.0))[:2] != (party, until):
                        banned[address] = (party, until, 2 * until - now)
                    present = {party for _, party in members.values()}
                    banned = {at: ban for at, ban in banned.items() if now <= ban[2] or ban[0] in present}
            case "observe":
                router.observe(party, "backward", data.draw(st.floats(0, 10)))
            case "pick":
                for stage in range(2):
                    free = {
                        party
                        for home, party in members.values()
                        if home == stage
                        and (party.address not in banned or banned[party.address][0] != party)
                        and now >= banned.get(party.address, (None, 0.0, 0.0))[1]
                    }
                    chosen = router.pick(stage, "forward", now)
                    assert chosen in free if free else chosen is None
