"""A look at a swarm on a terminal: whole where there is room, and whatever the room, who it is about."""

from io import StringIO

import pytest
from rich.console import Console

from apps.swarm.status.table import COLUMNS, table

PEER = {"name": "p0", "stage": 0, "phase": "serving", "silent": False, "share": 0.5, "step": 42, "counted": 3}
PEER |= {"waiting": 12, "forwards": 15400, "backwards": 1660, "sent": 4e6}
LOOK = {"step": 42, "steps": 200, "loss": 3.0, "norm": 1.0, "eval_loss": None, "tokens_per_s": 9.0, "conductor": "t"}
LOOK |= {"waits_for": "", "trainers": [], "peers": [PEER, PEER | {"name": "a-machine-of-a-long-name", "stage": 1}]}


def lines(width, **more):
    shown = StringIO()
    Console(file=shown, width=width).print(table(LOOK | more))
    return [line.rstrip() for line in shown.getvalue().splitlines()]


@pytest.mark.parametrize("width, left_out", [(100, 0), (80, 0), (60, 2), (40, 5), (20, 8)])
def test_what_has_no_room_is_left_out_from_the_end_and_nothing_is_cut(width, left_out):
    shown = lines(width)
    columns = next(line for line in shown if line.startswith("stage"))
    assert columns.replace("MiB out", "MiB_out").split() == [
        name.replace(" ", "_") for name in COLUMNS[: len(COLUMNS) - left_out]
    ]
    first = next(line for line in shown if " p0" in line)
    cells = ["0", "p0", "serving", "42", "3", "12", "15400", "1660", "50", "%", "3.8"]
    assert first.split() == cells[: len(first.split())] and max(map(len, shown)) <= width


def test_a_stage_that_is_not_saved_is_warned_of_with_the_remedy():
    assert lines(100, unsaved_stages=[1])[-1] == "no peer saves stage 1: start one with --stage 1 --checkpoint DIR"


def test_a_record_that_cannot_be_read_is_warned_of_with_the_reason_and_of_the_head_with_the_remedy():
    told = lines(200, unreadable={"head": "not a Commit", "peers/x": "not a Peer"})[-2:]
    assert told == [
        "the directory's record 'head' cannot be read (not a Commit); if no trainer writes it anew, start one with "
        "--resume",
        "the directory's record 'peers/x' cannot be read (not a Peer)",
    ]


def test_a_trainer_that_claims_to_lead_a_step_before_there_is_one_is_shown_all_the_same():
    assert lines(100, step=None, step_phase="summing", attempt=2)[0] == "no step yet"


def test_the_attempt_the_last_failure_donors_savers_and_the_last_events_are_shown():
    event = {
        "at": 1.0,
        "level": "warning",
        "kind": "peer evicted",
        "facts": {"peer": "b", "why": "no\x1b[2J"},
        "by": "t\x1b0",
    }
    told = lines(
        200,
        step_phase="summing",
        attempt=2,
        last_failure="step 43, attempt 1: a: lost",
        donors={"late": "p0"},
        savers=["p0", None],
        events=[event] * 9,
    )
    assert told[-9:-5] == [
        "step 43: summing, attempt 2",
        "the last failure: step 43, attempt 1: a: lost",
        "donors: late from p0",
        "savers: stage 0 p0",
    ]
    assert len([each for each in told if "peer evicted" in each]) == 5
    assert told[-1].endswith('t\ufffd0: peer evicted: peer=b why="no\\u001b[2J"')


def test_no_text_off_the_network_reaches_the_terminal_as_a_command():
    bad = "x\x1b]0;title\x07\x1b[2J\x9b2J\n"
    peer = PEER | {"name": bad, "phase": bad}
    trainer = {"name": bad, "silent": False, "leads": True, "banned": {bad: 1.0}}
    shown = lines(
        400,
        peers=[peer],
        trainers=[trainer, trainer | {"silent": True}],
        conductor=bad,
        waits_for=bad,
        last_failure=bad,
        donors={bad: bad},
        savers=[bad],
        unreadable={bad: bad},
    )
    assert len([line for line in shown if "title" in line]) == 8
    assert all(line.isprintable() for line in shown)


def test_a_trainer_that_says_nothing_of_use_is_shown_all_the_same():
    assert "trainer t: 0 microbatches, 0.0 a second" in lines(100, trainers=[{"name": "t", "silent": False}])
