"""A wait that lasts is told, and its end; one that is over in a moment is not."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pipelined.aio.clock import run_virtual
from pipelined.membership.directory import Change, Entry
from pipelined.process.reporting.progress import MOMENT_S, reported_wait
from pipelined.state.stages.versions import SavedStages
from pipelined.swarm.process.trainer_process import WaitLog
from pipelined.swarm.records.members import PEERS, LeaderRecord, PeerRecord, Phase, TrainerRecord
from pipelined.swarm.records.steps import Head
from pipelined.swarm.rules import Rules
from pipelined.swarm.status.reader import waits_for
from tests.unit.pipelined.swarm.process.test_peer_process import SettableView
from tests.virtual_time import virtual_seconds

HEAD, LEADER = Head(2, "m"), LeaderRecord("t", "at t")


def serving(stage, phase=Phase.SERVING):
    """News of a stage's peer; phase None: it is gone."""
    name = f"p{stage}"
    entry = phase and Entry(PeerRecord(name, f"at {name}", 1, stage, phase, "m").pack(), 1)
    return {PEERS + name: entry}


@pytest.mark.parametrize(
    "head, leader, trains, served, why",
    [
        (None, None, False, False, "a trainer"),
        (HEAD, None, True, False, "a leader"),
        (None, LEADER, True, False, "peers that have saved all stages at one step"),
        (HEAD, LEADER, True, False, "a peer of stage 0, 1"),
        (HEAD, LEADER, True, True, ""),
    ],
)
def test_what_a_swarm_waits_for(head, leader, trains, served, why):
    view = SettableView(None, None)
    view.head, view.leader, view.trainers = head, leader, {"t": None} if trains else {}
    for name, entry in (serving(0) | serving(1, Phase.DRAINING) if served else {}).items():
        view.apply(name, entry)
    assert waits_for(view) == why
    assert waits_for(view, is_over=True) == ""


@pytest.mark.parametrize(
    "saved, why",
    [
        ([], "a peer that has the state of stage 1, or a saved step of all stages (saved: nothing)"),
        ([(2, 0, 2, "run-a")], "a peer that has the state of stage 1, or a saved step of all stages (saved: steps 2"),
        ([(2, 0, 2, "run-a"), (2, 1, 2, "run-a")], "a peer of stage 1"),
        ([(2, 0, 2, "other-a"), (2, 1, 2, "other-a")], "a peer that has the state of stage 1, or a saved step"),
    ],
)
def test_a_stage_of_which_the_state_is_lost_is_not_said_to_wait_for_any_peer(saved, why):
    """As after the death of a stage's last peer, also where a new peer joins it; `EmergencyReassignment` acts alike."""
    view = SettableView(None, None)
    view.head, view.leader = replace(HEAD, step=3, lineage="run-b"), LEADER
    view.trainers, view.saved = {"t": None}, {"p0": SavedStages([[*each] for each in saved])}
    for name, entry in (serving(0) | serving(1, Phase.JOINING)).items():
        view.apply(name, entry)
    assert waits_for(view).startswith(why)


async def told(*news):
    """What a trainer says while this changes in its view, or in the directory, each for so long."""
    view, said = SettableView(None, None), []
    view.unscored = None
    due = lambda: view.evaluation is not None  # noqa: E731
    rules = Rules("m", stages=2, batch=1, samples=1, eval_batch=7)
    trainer = SimpleNamespace(name="t", view=view, rules=rules, is_to_evaluate=due, leader=view)
    following = asyncio.ensure_future(WaitLog(trainer, said.append).follow())
    for seconds, changes in news:
        for name, value in changes.items():
            if name.startswith(PEERS):
                view.apply_changes([Change(name, value, 1)])
            else:
                setattr(view, name, value)
        view.notify()
        await virtual_seconds(seconds)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    return said


NOBODY = serving(0, None) | serving(1, None)
ALL = serving(0) | serving(1)
STANDS = {"revision": 1, "trainers": {"t": TrainerRecord("t", "at t", 1, "m")}, "head": HEAD, "leader": LEADER}


def test_waits_that_last_are_reported_once_and_so_is_their_end():
    news = [
        (9, STANDS),
        (9, serving(0)),
        (9, ALL),
        (9, {"cut_off": True}),
        (9, {"cut_off": False}),
    ]
    assert run_virtual(told(*news)) == [
        "t: waits for a peer of stage 0, 1",
        "t: waits for a peer of stage 1",
        "t: training continues",
        "t: the directory does not reply; no step is committed until it replies",
        "t: training continues",
    ]


def test_an_evaluation_is_reported_with_its_length():
    news = [(9, STANDS | ALL | {"evaluation": "due"}), (9, {"evaluation": None})]
    assert run_virtual(told(*news)) == [
        "t: waits for the evaluation after 0 steps (7 microbatches)",
        "t: training continues",
    ]


def test_of_an_evaluation_that_lasts_it_is_reported_how_far_it_is():
    begun = STANDS | ALL | {"evaluation": "due", "unscored": 7}
    news = [(3, begun), (1, {"unscored": 6}), (9, {"unscored": 4}), (30, {}), (9, {"evaluation": None, "unscored": 0})]
    assert run_virtual(told(*news))[1:] == ["t: 3 of 7 microbatches evaluated", "t: training continues"]


def test_of_a_short_wait_nothing_is_reported():
    short = 0.9 * MOMENT_S
    news = [
        (9, STANDS | ALL),
        (short, serving(1, None)),
        (short, NOBODY | serving(1)),
        (9, ALL),
    ]
    assert run_virtual(told(*news)) == []


def test_a_head_that_cannot_be_read_is_reported_with_the_remedy():
    (said,) = run_virtual(told((9, STANDS | ALL | {"head": None, "unreadable": {"head": "not a Head"}})))
    assert "'head' cannot be read (not a Head)" in said and said.endswith("or for one that is started with --resume")


def test_a_directory_that_was_never_there_is_waited_for():
    assert run_virtual(told((9, {}))) == ["t: waits for the directory"]


def test_a_block_that_lasts_reports_what_it_waits_for():
    async def wait(seconds):
        said = []
        async with reported_wait("the others", said.append):
            await virtual_seconds(seconds)
        return said

    assert run_virtual(wait(9)) == ["waits for the others"] and run_virtual(wait(0.9 * MOMENT_S)) == []
