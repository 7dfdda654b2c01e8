"""The trace is what it is said to be, the fluid adds up, and rebalancing keeps what would be lost without it."""

import json
import sys
from dataclasses import replace
from statistics import mean

import pytest

from benchmarks._swarm_fluid import Account, Policy, play
from benchmarks._swarm_trace import Trace
from benchmarks.swarm_rebalancing import ARMS, HOURS, Options, main, row

SMALL = Trace(peers=80, last=32, hours=8.0)


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
    assert account.done == pytest.approx([6 * 3600, 8 * 3600, 4 * 3600])
    assert [account.percent(hours) for hours in HOURS.values()] == pytest.approx([90, 75, 100])


@pytest.mark.parametrize("policy", [arm.policy for arm in ARMS], ids=[arm.name for arm in ARMS])
def test_where_nobody_comes_or_goes_all_is_done_that_can_be(policy):
    account = play(Trace(peers=12, last=12, hours=3.0, events=1e-9), 4, policy, seed=0)
    assert account.percent() == pytest.approx(100) and account.moves == 0


def test_rebalancing_recovers_what_would_be_lost():
    """A seeded sample of the benchmark, at a quarter of its size."""
    last = {
        name: mean(play(SMALL, 4, policy, seed).percent(slice(-2, None)) for seed in range(3))
        for name, policy in [("none", Policy(placed=False)), ("300", Policy(300.0, False)), ("60", Policy(60.0, False))]
    }
    assert last["none"] + 10 < last["300"] < last["60"] + 1 and last["60"] > 90


def test_newcomers_that_are_placed_need_fewer_moves():
    moved = {placed: play(SMALL, 4, Policy(60.0, placed), 1).moves for placed in (False, True)}
    assert 0 < moved[True] < moved[False]


def test_a_run_is_the_same_each_time_and_another_for_another_seed():
    one, again, other = (play(SMALL, 4, Policy(300.0), seed).done for seed in (1, 1, 2))
    assert one == again != other


def test_a_peer_that_fetches_its_state_does_nothing_meanwhile():
    at_once, late = (play(SMALL, 4, Policy(60.0, fetch=fetch), 1).percent() for fetch in (0.0, 900.0))
    assert late < at_once


def test_a_row_says_whether_the_paper_s_figures_were_kept():
    done = row(replace(ARMS[2], paper=(0.0, 0.0, 0.0)), SMALL, 4, seeds=1)
    assert not done.within and replace(done, paper=tuple(done.percent.values())).within
    assert not replace(done, paper=None, seconds=61.0).within


def test_a_smaller_trace_is_as_likely_to_strike_each_peer():
    options = Options(peers=100)
    assert (options.trace.last, options.trace.events, options.trace.spread) == (32, Trace().events / 4, 10.0)
    assert Options().trace == Trace()


def test_it_prints_one_json_object(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["rebalancing", "--seeds=2", "--peers=40", "--hours=2", "--json"])
    assert main() == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["arm"] for each in told["rows"]] == [arm.name for arm in ARMS]
    assert all(0 < each["percent"]["overall"] <= 100 for each in told["rows"])
