"""Every committed step is reported once, in order, however the directory's changes arrive."""

import asyncio

from pipelined.aio.clock import VirtualClock, run_virtual
from pipelined.membership.directory import Change, Entry
from pipelined.swarm.records.committed_steps import CommittedSteps, StepCommitted, StepEvaluated, StepsBegan
from pipelined.swarm.records.steps import EVALUATED, HEAD, Evaluation, Head
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import Rules

RULES = Rules(model="m", stages=1, batch=1, samples=1, eval_every=2, eval_batch=1)
STEPS = 4


def head(step, lineage="r", peers=2, scale=1.0):
    members = [[f"p{peer}" for peer in range(peers)]] if peers else []
    return Head(1, "m", step, members=members, scale=scale, lineage=lineage)


def changes(*records, first=1):
    """The changes of these records, a revision each."""
    sequence = []
    for revision, record in enumerate(records, start=first):
        if isinstance(record, bytes):
            entries = {HEAD: record}
        else:
            entries = {EVALUATED: record.pack()} if isinstance(record, Evaluation) else record.entries({})
        sequence += [Change(key, Entry(value, revision), revision) for key, value in entries.items()]
    return sequence


async def follow(*messages):
    """The events of these messages of records, which arrive a second apart."""
    view, events = SwarmView(None, VirtualClock()), []

    async def collect():
        async for event in CommittedSteps(view, RULES, VirtualClock(), STEPS).follow():
            events.append(event)

    following = asyncio.ensure_future(collect())
    for records in messages:
        await VirtualClock().sleep(1.0)
        view.apply_changes(changes(*records, first=view.revision + 1))
    await VirtualClock().sleep(1.0)
    ended = following.done()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    return events, ended


def events(*messages):
    return [short(event) for event in run_virtual(follow(*messages))[0]]


def short(event):
    match event:
        case StepsBegan(head, rolled_back, loss):
            return "rolled back" if rolled_back else "began", head.step, loss
        case StepCommitted(head, seconds, evaluates):
            return "committed", head.step, seconds, evaluates
        case StepEvaluated(head, loss):
            return "evaluated", head.step, loss


BEGAN = ("began", 0, None)


def test_two_steps_in_one_message_are_two_steps_and_share_the_time():
    sequence = events([head(0, peers=0)], [head(1)], [head(2), Evaluation(2, "r", 0.5), head(3)])
    assert sequence == [
        BEGAN,
        ("committed", 1, 1.0, False),
        ("committed", 2, 0.5, True),
        ("evaluated", 2, 0.5),
        ("committed", 3, 0.5, False),
    ]


def test_the_members_of_each_step_are_those_of_its_own_record():
    (_, first, second), _ = run_virtual(follow([head(0, peers=0)], [head(1, peers=3), head(2, peers=1)]))
    assert [len(event.head.members[0]) for event in (first, second)] == [3, 1]


def test_following_ends_after_the_evaluation_of_the_last_step():
    before = [head(3)], [head(STEPS)]
    assert run_virtual(follow(*before))[1] is False
    sequence, ended = run_virtual(follow(*before, [Evaluation(STEPS, "r", 0.5)]))
    assert (short(sequence[-1]), ended) == (("evaluated", STEPS, 0.5), True)


def test_a_rollback_is_no_step():
    sequence = events([head(0, peers=0)], [head(2)], [head(1, peers=0)], [Evaluation(2, "lost", 9.0)], [head(2, "s")])
    assert sequence == [
        BEGAN,
        ("committed", 2, 0.5, True),
        ("rolled back", 1, None),
        ("committed", 2, 2.0, True),
    ]


def test_a_head_that_only_moves_a_peer_is_no_event():
    moved = Head(1, "m", 1, members=[["p0", "p1"]], scale=1.0, lineage="r", moves={"p0": 0})
    assert events([head(0, peers=0)], [head(1)], [moved], [head(2)])[1:] == [
        ("committed", 1, 1.0, False),
        ("committed", 2, 2.0, True),
    ]


def test_a_step_that_is_computed_again_is_one_step_and_has_the_time_of_both():
    assert events([head(0, peers=0)], [head(1)], [head(1, "r2", scale=0.0)], [head(2)])[2:] == [
        ("committed", 2, 2.0, True),
    ]


def test_a_loss_that_was_known_before_comes_with_the_beginning():
    assert events([Evaluation(2, "r", 0.5), head(2)]) == [("began", 2, 0.5)]


def test_a_view_that_already_has_a_head_begins_there():
    async def follow_late():
        view = SwarmView(None, VirtualClock())
        view.apply_changes(changes(head(STEPS), Evaluation(STEPS, "r", 0.5)))
        return [short(event) async for event in CommittedSteps(view, RULES, VirtualClock(), STEPS).follow()]

    assert run_virtual(follow_late()) == [("began", STEPS, 0.5)]


def test_a_record_that_cannot_be_read_costs_no_other_step():
    assert [found[:2] for found in events([head(0, peers=0)], [head(1), b"nonsense", head(2)])] == [
        ("began", 0),
        ("committed", 1),
        ("committed", 2),
    ]
