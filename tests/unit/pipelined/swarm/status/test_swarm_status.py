"""What a swarm looks like from outside: what is left to do, how fast it goes, and how old the look is."""

import asyncio
import json
import math

import pytest

from apps.common.status_page import web
from apps.common.status_page.web import to_json
from apps.swarm.config import SwarmTask, TrainingConfig, read_goal
from apps.swarm.status.prometheus import metrics
from apps.swarm.status.table import SWARM
from pipelined.aio.clock import run_virtual
from pipelined.membership.directory import CutOff, Entry, Snapshot
from pipelined.membership.polls import DIRECTORY_TIMEOUT_S
from pipelined.membership.task_record import TASK
from pipelined.process.reporting.events import Event
from pipelined.state.stages.versions import SAVED, SavedStages
from pipelined.swarm.protocol.status import LeaderReport, StatusReply
from pipelined.swarm.records.members import (
    LEADER,
    OBSERVERS,
    PEERS,
    TRAINERS,
    LeaderRecord,
    ObserverRecord,
    PeerRecord,
    Phase,
    TrainerRecord,
)
from pipelined.swarm.records.steps import EVALUATED, HEAD, Evaluation, Head
from pipelined.swarm.status.reader import MAX_REQUESTS, StatusReader
from pipelined.swarm.status.swarm_status import Selection
from tests.unit.pipelined.swarm.status.samples import peer, peer_reply, status, trainer_reply
from tests.virtual_time import virtual_seconds
from transports.rpc import Response, Unreachable


def page(seen):
    return web.page(SWARM, seen)


TOLD = SwarmTask(TrainingConfig(stages=2, microbatch=4, batch=8, seq=16, steps=5), 256, "text", 7)


class Keys:
    """A directory with these keys; what is None is never answered, an error is raised."""

    def __init__(self, *answers):
        self.answers = list(answers)

    async def read(self):
        response = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(response, Exception):
            raise response
        if response is None:
            await asyncio.Event().wait()
        packed = {key: each if isinstance(each, bytes) else each.pack() for key, each in response.items()}
        return Snapshot(1, {key: Entry(value, 1) for key, value in packed.items()})


class Members:
    """All members of a swarm, by address."""

    def __init__(self, **said):
        self.said = said

    async def request(self, address, topic, note):
        if address not in self.said:
            raise Unreachable(address, "no process is there")
        reply = self.said[address]
        return reply.response() if isinstance(reply, StatusReply) else Response(note=reply)


def at(step, evaluated=None):
    records = {TASK: TOLD, HEAD: Head(2, "m", step, lineage="r"), LEADER: LeaderRecord("t", "there")}
    records[TRAINERS + "t"] = TrainerRecord("t", "there", 1, "m")
    records[TRAINERS + "u"] = TrainerRecord("u", "nowhere", 2, "m")
    return records if evaluated is None else records | {EVALUATED: Evaluation(evaluated, "r", 1.5)}


async def read(endpoint, directory, selection=None):
    return await StatusReader(endpoint, directory, read_goal, selection).read()


async def look(endpoint, directory, selection=None):
    """The status as `--json` prints it."""
    return (await read(endpoint, directory, selection)).to_dict()


def seen(keys, **leading):
    """The status, with a trainer at "there" that reports this as the leader."""
    nothing = {"left": 1, "unscored": 0, "phase": "", "attempt": 0, "last_failure": ""}
    leads = LeaderReport(**(nothing | leading)) if leading else None
    return asyncio.run(look(Members(there=trainer_reply(rate=2.5, leads=leads)), Keys(keys)))


def test_a_swarms_speed_is_that_of_all_trainers_that_answer():
    told = seen(at(3))
    assert (told["tokens_per_s"], told["step"], told["steps"]) == (2.5 * 4 * 16, 3, 5)
    assert [trainer["silent"] for trainer in told["trainers"]] == [False, True]
    assert seen({})["tokens_per_s"] is None


def test_the_last_step_is_evaluated_and_then_nothing_is_waited_for():
    lost = "a peer that has the state of stage 0, 1, or a saved step of all stages (saved: nothing)"
    assert seen(at(3))["waits_for"] == lost
    assert seen(at(5, evaluated=4))["waits_for"] == lost, "no peer can evaluate it"
    assert seen(at(5, evaluated=5))["waits_for"] == ""


def test_json_has_the_words_of_the_page_beside_former_ones():
    told = status(peers=[peer(phase=Phase.DRAINING)], age_s=2.0).to_dict()
    (shown,) = told["peers"]
    assert shown["phase"] == "draining" and told["leader"] == told["conductor"] and told["age_s"] == told["past_s"] == 2
    assert shown["invalid_input"] == shown["rejected"] and shown["rejected_requests"] == shown["refused"]


def test_a_stage_is_served_while_its_last_peer_drains():
    peers = {
        PEERS + "a": PeerRecord("a", "nowhere", 1, 0, Phase.SERVING, "m"),
        PEERS + "b": PeerRecord("b", "nowhere", 2, 1, Phase.DRAINING, "m"),
    }
    assert seen(at(3) | peers)["waits_for"] == ""


def test_how_far_the_last_evaluation_is_is_reported_where_the_leader_says_it():
    peers = {f"{PEERS}p{stage}": PeerRecord(f"p{stage}", "nowhere", 1, stage, Phase.SERVING, "m") for stage in range(2)}
    for leading, told in [({}, "7"), ({"unscored": 3}, "4 of 7")]:
        waits = seen(at(5, evaluated=4) | peers, **leading)["waits_for"]
        assert waits == f"the evaluation after 5 steps ({told} microbatches)"


@pytest.mark.parametrize("key", [HEAD, LEADER, EVALUATED, TASK, PEERS + "x", TRAINERS + "x", SAVED + "x"])
def test_a_record_that_cannot_be_read_is_shown_with_the_reason_beside_all_others(key):
    told = seen(at(3) | {key: b"\xc1"})
    assert [*told["unreadable"]] == [key] and told["unreadable"][key]
    assert {trainer["name"] for trainer in told["trainers"]} == {"t", "u"}
    assert seen(at(3))["unreadable"] == {}


def test_the_leader_reports_what_it_does_which_attempt_it_is_and_what_failed_last():
    told = seen(at(3), phase="summing", attempt=2, last_failure="step 3, round 1: a: lost")
    assert (told["step_phase"], told["attempt"], told["last_failure"]) == ("summing", 2, "step 3, round 1: a: lost")
    told = seen(at(3))
    assert (told["step_phase"], told["attempt"], told["last_failure"]) == (None, None, None)


def test_donors_and_savers_are_named():
    peers = {
        PEERS + "old": PeerRecord("old", "nowhere", 1, 0, Phase.SERVING, "m", saves_every=5),
        PEERS + "new": PeerRecord("new", "nowhere", 2, 0, Phase.SERVING, "m", saves_every=5),
        PEERS + "late": PeerRecord("late", "joining", 3, 1, Phase.JOINING, "m", saves_every=5),
    }
    told = asyncio.run(look(Members(joining=peer_reply(donor="new")), Keys(at(3) | peers)))
    assert (told["donors"], told["savers"]) == ({"late": "new"}, ["old", None])


def test_the_last_events_of_all_members_are_there_each_once_in_order_with_its_member():
    first, second = (Event(when, 20, "leads", {"term": when}) for when in (1.0, 2.0))
    peer = {PEERS + "p": PeerRecord("p", "here", 1, 0, Phase.SERVING, "m")}
    members = Members(there=trainer_reply(events=(first, second)), here=peer_reply(events=(second,)))
    told = asyncio.run(look(members, Keys(at(3) | peer)))["events"]
    assert [(each["at"], each["by"], each["facts"]) for each in told] == [
        (1.0, "t", {"term": 1.0}),
        (2.0, "p", {"term": 2.0}),
    ]


class Busy:
    """Members that all answer after a while; how many were asked, and how many at once."""

    def __init__(self):
        self.asked, self.now, self.most = [], 0, 0

    async def request(self, address, topic, note):
        self.asked.append(address)
        self.now += 1
        self.most = max(self.most, self.now)
        await virtual_seconds(0.1)
        self.now -= 1
        leads = LeaderReport(left=1, unscored=0, phase=address, attempt=1, last_failure="")
        return trainer_reply(replies={"p00-000": 3, "p00-499": 1}, rate=1.0, leads=leads).response()


def large(form=None, **flags):
    """A look at 1,000 peers of two stages and 300 trainers, and what was asked."""
    peers = {
        f"{PEERS}p{at % 2:02}-{at // 2:03}": PeerRecord(
            f"p{at % 2:02}-{at // 2:03}", f"at {at}", 1, at % 2, Phase.SERVING if at > 9 else Phase.JOINING, "m"
        )
        for at in range(1000)
    }
    trainers = {f"{TRAINERS}t{at:03}": TrainerRecord(f"t{at:03}", f"t{at:03}", 1, "m") for at in range(300)}
    members = Busy()
    leads = {LEADER: LeaderRecord("t299", "t299")}
    told = run_virtual((form or look)(members, Keys(at(3) | peers | trainers | leads), Selection(**flags)))
    return told, members


def test_some_of_many_members_get_requests_a_few_at_a_time_and_all_are_counted():
    told, members = large()
    assert len(members.asked) == 200 and members.most == MAX_REQUESTS
    assert [peer["name"] for peer in told["peers"]] == [f"p00-{at:03}" for at in range(100)]
    assert len(told["trainers"]) == 100 and told["step_phase"] == "t299", "the leader was not asked"
    assert told["left_out"] == {"peers": 900, "trainers": 202}
    assert told["summary"] == [
        {"stage": stage, "joining": 5, "serving": 495, "parting": 0, "draining": 0, "leaving": 0} for stage in range(2)
    ]
    assert told["peers"][0]["share"] == 0.75, "a peer that is not shown does not count"
    assert told["waits_for"] == "", "a stage with no peer that is shown was taken to be without peers"


def test_the_peers_of_one_stage_can_be_looked_at():
    told, members = large(stage=1, members=1000)
    assert [peer["name"] for peer in told["peers"]] == [f"p01-{at:03}" for at in range(500)]
    assert members.most == MAX_REQUESTS and told["left_out"] == {"peers": 500, "trainers": 0}
    assert told["summary"][0]["serving"] == 495


def test_the_counts_of_a_large_swarm_are_on_its_page_before_those_that_are_shown():
    counts, shown = page(large(read)[0]).splitlines()[2:4]
    assert counts == "1000 peers of 2 stages: 10 joining, 990 serving; serving a stage: 495 (stage 0) to 495 (stage 0)"
    assert shown == "shown: 100 of 1000 peers, 100 of 302 trainers; --stage N shows another stage, --members N more"
    assert "shown:" not in page(asyncio.run(read(Members(), Keys(at(3)))))


def test_observers_are_named():
    assert seen(at(3) | {OBSERVERS + "o": ObserverRecord("o", "nowhere", 3)})["observers"] == ["o"]


@pytest.mark.parametrize(
    "saves_every, saved, unsaved",
    [((5, 0), (), [1]), ((5, 5), (), []), ((0, 0), (), []), ((0, 0), ([5, 0, 2, "r"],), [0, 1])],
)
def test_stages_that_no_peer_saves_are_named_in_a_swarm_that_saves(saves_every, saved, unsaved):
    peers = {
        f"{PEERS}p{stage}": PeerRecord(f"p{stage}", "nowhere", 1, stage, Phase.SERVING, "m", saves_every=every)
        for stage, every in enumerate(saves_every)
    }
    assert seen(at(3) | peers | {SAVED + "0": SavedStages([*saved])})["unsaved_stages"] == unsaved


def test_a_resume_that_cannot_be_is_reported_with_the_steps_of_each_stage():
    records = {TRAINERS + "t": TrainerRecord("t", "there", 1, "m"), LEADER: LeaderRecord("t", "there")}
    saved = SavedStages([[5, 0, 2, "r"], [10, 0, 2, "s"]])
    waits = seen(records | {SAVED + "p": saved})["waits_for"]
    assert waits == "peers that have saved all stages at one step (saved: steps 5, 10: stage 0; no step: stage 1)"


@pytest.mark.virtual
async def test_while_the_directory_is_away_the_last_look_is_shown_with_its_age():
    keys = Keys(at(3), at(4), None, CutOff("away"), at(5))
    looks = StatusReader(Members(), keys, read_goal).repeat(1.0)
    assert [(each.step, each.age_s) for each in [await anext(looks) for _ in range(5)]] == [
        (3, 0.0),
        (4, 0.0),
        (4, 1.0 + DIRECTORY_TIMEOUT_S),
        (4, 2.0 + DIRECTORY_TIMEOUT_S),
        (5, 0.0),
    ]


def test_a_directory_that_never_answered_is_no_look():
    with pytest.raises(CutOff):
        asyncio.run(anext(StatusReader(Members(), Keys(CutOff("away")), read_goal).repeat(1.0)))


def test_a_reply_as_a_trainer_from_a_peer_changes_nothing_of_its_record():
    record = PeerRecord("p", "here", 1, 0, Phase.SERVING, "m")
    members = Members(here=trainer_reply())
    (peer,) = asyncio.run(look(members, Keys(at(3) | {PEERS + "p": record})))["peers"]
    assert (peer["name"], peer["stage"], peer["silent"], "step" in peer) == ("p", 0, False, False)
    assert math.isnan(peer["share"])


RUBBISH = [None, True, -1, 1 << 63, math.nan, math.inf, "x", b"x", [[]], {"x": "y"}, {1: []}, {"p": math.nan}]


@pytest.mark.parametrize("rubbish", RUBBISH, ids=repr)
def test_a_reply_that_cannot_be_read_ends_no_status_and_no_page(rubbish):
    peer = {PEERS + "p": PeerRecord("p", "here", 1, 0, Phase.SERVING, "m")}
    for note in (rubbish, [rubbish] * 5, {1: rubbish}):
        status = asyncio.run(read(Members(here=note, there=note), Keys(at(5, evaluated=4) | peer)))
        assert "trainer t: silent" in page(status) and "swarm_step 5" in metrics(status.to_dict())
        json.loads(to_json(status.to_dict()))
