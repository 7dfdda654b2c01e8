"""The trace is what it is said to be, the fluid adds up, and rebalancing keeps what would be lost without it."""

import functools
import json
import sys
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.swarm.account import BINS, Account
from benchmarks.swarm.availability import Trace
from benchmarks.swarm.fluid import Policy, play
from benchmarks.swarm_rebalancing import ARMS, HOURS, main
from pipelined.swarm.leader.reassignment import rebalance

SMALL = Trace(peers=80, last=32, hours=8.0, events=19.0)


@functools.cache
def played(policy, seed):
    return play(SMALL, 4, policy, seed)


def test_the_trace_is_steady_and_then_declines():
    for seed in range(5):
        there, seen = 400, []
        for change in Trace().changes(seed):
            there += change.peers
            seen.append((change.moment / 3600, there))
        assert mean(peers for hour, peers in seen if hour < 16) == pytest.approx(400, abs=20)
        assert mean(peers for hour, peers in seen if 23 < hour < 25) == pytest.approx(264, abs=30)
        assert seen[-1][1] == pytest.approx(128, abs=60) and min(peers for _, peers in seen) > 0


def test_the_trace_has_as_many_events_as_it_says():
    changes = [change for seed in range(5) for change in Trace().changes(seed)]
    assert len(changes) / (5 * 32) == pytest.approx(Trace().events, rel=0.1)
    assert mean(abs(change.peers) for change in changes) == pytest.approx(3, rel=0.1)


def test_an_account_splits_what_was_done_by_the_hour():
    account = Account()
    account.add(0.0, 1800.0, 4.0, 8.0)
    account.add(1800.0, 9000.0, 8.0, 8.0)
    assert account.done == pytest.approx([4 * 300] * 6 + [8 * 300] * 24) and len(account.best) == 2.5 * BINS
    assert [account.percent(hours) for hours in HOURS.values()] == pytest.approx([90, 75, 100])


@pytest.mark.parametrize("policy", [arm.policy for arm in ARMS], ids=[arm.name for arm in ARMS])
def test_without_joins_and_leaves_all_possible_work_is_done(policy):
    account = play(Trace(peers=12, last=12, hours=3.0, events=1e-9), 4, policy, seed=0)
    assert account.percent() == pytest.approx(100) and account.moves == 0


def test_rebalancing_recovers_what_would_be_lost():
    """A seeded sample of the benchmark, at a quarter of its size."""
    last = {
        name: mean(played(policy, seed).percent(slice(-2, None)) for seed in range(3))
        for name, policy in [("none", Policy(placed=False)), ("300", Policy(300.0, False)), ("60", Policy(60.0, False))]
    }
    assert last["none"] + 10 < last["300"] < last["60"] + 1 and last["60"] > 90


def test_newcomers_that_are_placed_need_fewer_moves():
    moved = {placed: played(Policy(60.0, placed), 1).moves for placed in (False, True)}
    assert 0 < moved[True] < moved[False]


def test_a_run_is_the_same_each_time_and_another_for_another_seed():
    one, other = (played(Policy(60.0), seed).done for seed in (1, 2))
    assert play(SMALL, 4, Policy(60.0), 1).done == one != other


def test_a_peer_that_fetches_its_state_does_nothing_meanwhile():
    at_once, late = (played(Policy(60.0, fetch=fetch), 1).percent() for fetch in (0.0, 900.0))
    assert late < at_once


def test_a_dead_peer_is_believed_to_live_until_its_lease_runs_out():
    """With few peers and long leases the rebalancer counts many dead peers, and does worse."""
    short, long = (played(Policy(60.0, False, lease=lease), 1).percent() for lease in (60.0, 3600.0))
    assert long < short


TRACES = st.builds(Trace, st.integers(4, 24), st.integers(4, 24), st.just(3.0), st.sampled_from([5.0, 60.0]))


@settings(max_examples=20)
@given(TRACES, st.integers(2, 4), st.booleans(), st.integers(0, 99))
def test_each_look_moves_one_at_most_and_never_the_last_that_serves(trace, stages, placed, seed):
    looks = []

    def watched(known):
        decided = rebalance(known)
        for peer in decided:
            (stage,) = (stage for stage in known if peer in stage)
            assert sum(load is not None for load in stage.values()) > 1
        looks.append(len(decided))
        return decided

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.swarm.fluid.rebalance", watched)
        account = play(trace, stages, Policy(300.0, placed, fetch=120.0), seed)
    assert max(looks) <= 1 and account.moves <= sum(looks)
    assert 3 * 3600 / 300 - 1 <= len(looks) <= 3 * 3600 / 300


@pytest.mark.parametrize("wrong", ["--seeds=0", "--peers=3", "--events=0", "--figure --hours=2", "--arms some"])
def test_what_cannot_be_played_is_refused(monkeypatch, capsys, wrong):
    monkeypatch.setattr(sys, "argv", ["rebalancing", *wrong.split()])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2 and "give" in capsys.readouterr().err


def printed(monkeypatch, capsys, *flags):
    monkeypatch.setattr(sys, "argv", ["rebalancing", *flags])
    assert main() == 0
    return capsys.readouterr().out


def test_it_prints_one_json_object(monkeypatch, capsys):
    flags = ["--seeds=2", "--peers=40", "--hours=2", "--events", "20", "30"]
    found = json.loads(printed(monkeypatch, capsys, *flags, "--json"))
    assert [(each["events"], each["arm"]) for each in found["rows"]] == [
        (n, arm.name) for n in (20, 30) for arm in ARMS
    ]
    assert all(0 < each["mean"]["overall"] <= 100 for each in found["rows"])


def test_the_figure_ends_with_its_trends(monkeypatch, capsys):
    flags = ["--figure", "--seeds=1", "--peers=16", "--hours=8"]
    lines = printed(monkeypatch, capsys, *flags).splitlines()
    assert [line.split()[0] for line in lines[1:9]] == ["4", "4", "8", "8", "16", "16", "32", "32"]
    assert {line.split()[0] for line in lines[9:]} <= {"yes", "NO"} and len(lines) == 14
