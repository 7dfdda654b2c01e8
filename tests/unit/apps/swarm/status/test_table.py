"""The status of a swarm on a terminal: whole where there is room, and with each member's name in any room."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from apps.swarm.status.table import COLUMNS, table
from pipelined.process.reporting.events import Event
from pipelined.swarm.protocol.status import EndpointTraffic, LeaderReport, StageReport
from pipelined.swarm.records.members import TrainerRecord
from pipelined.swarm.status.swarm_status import LeftOut, MemberEvent, TrainerStatus
from tests.unit.pipelined.swarm.status.samples import peer, peer_reply, status, trainer, trainer_reply

SILENT = TrainerRecord("t", "there", 1, "m")

REPLY = peer_reply(StageReport(42, 3, 12, 15400, 1660), traffic=EndpointTraffic(4_000_000, 0, {}, {}))
STATUS = status(
    step=42,
    steps=200,
    loss=3.0,
    norm=1.0,
    eval_loss=None,
    tokens_per_s=9.0,
    waits_for="",
    trainers=[],
    peers=[peer("p0", 0, reply=REPLY, share=0.5), peer("a-machine-of-a-long-name", 1, reply=REPLY, share=0.5)],
)


def lines(width, **changes):
    shown = StringIO()
    Console(file=shown, width=width).print(table(replace(STATUS, **changes)))
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
    told = lines(200, unreadable={"head": "not a Head", "peers/x": "not a PeerRecord"})[-2:]
    assert told == [
        "the directory's record 'head' cannot be read (not a Head); if no trainer writes it anew, start one with "
        "--resume",
        "the directory's record 'peers/x' cannot be read (not a PeerRecord)",
    ]


def leading(phase="summing", failure=""):
    return LeaderReport(left=1, unscored=0, phase=phase, attempt=2, last_failure=failure)


def test_a_trainer_that_claims_to_lead_a_step_before_there_is_one_is_shown_all_the_same():
    assert lines(100, step=None, leading=leading())[0] == "no step yet"


def test_the_round_the_last_failure_donors_savers_and_the_last_events_are_shown():
    event = Event(1.0, 30, "peer evicted", {"peer": "b", "why": "no\x1b[2J"})
    told = lines(
        200,
        leading=leading(failure="step 42, round 1: a: lost"),
        donors={"late": "p0"},
        savers=["p0", None],
        events=[MemberEvent("t\x1b0", event)] * 9,
    )
    assert told[-9:-5] == [
        "step 42: summing, round 2",
        "the last failure: step 42, round 1: a: lost",
        "donors: late from p0",
        "savers: stage 0 p0",
    ]
    assert len([each for each in told if "peer evicted" in each]) == 5
    assert told[-1].endswith('t\ufffd0: peer evicted: peer=b why="no\\u001b[2J"')


def test_no_text_off_the_network_reaches_the_terminal_as_a_command():
    bad = "x\x1b]0;title\x07\x1b[2J\x9b2J\n"
    shown = lines(
        400,
        peers=[peer(bad)],
        trainers=[trainer(bad, trainer_reply(banned={bad: 1.0}, leads=leading(bad))), TrainerStatus(SILENT, None)],
        leader=bad,
        waits_for=bad,
        leading=leading(bad, failure=bad),
        donors={bad: bad},
        savers=[None, bad],
        unreadable={bad: bad},
    )
    assert len([line for line in shown if "title" in line]) == 7
    assert all(line.isprintable() for line in shown)


def test_a_silent_trainer_and_a_peer_without_a_stage_are_shown_all_the_same():
    shown = lines(100, trainers=[TrainerStatus(SILENT, None)], peers=[peer("p0", reply=peer_reply(None))])
    assert "trainer t: silent" in shown and any(" p0 " in line for line in shown)


def test_trainers_that_are_left_out_are_counted_before_there_is_a_peer():
    told = lines(200, step=None, stages=0, peers=[], summary=[], trainers=[trainer()], left_out=LeftOut(trainers=1))
    assert told[1] == "shown: 0 of 0 peers, 1 of 2 trainers; --stage N shows another stage, --members N more"
