"""The leader sends a newcomer where it is needed most, by the peers there are and what it has on disk."""

import asyncio
import random
import sys
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from pipelined.aio.clock import VirtualClock, run_virtual
from pipelined.aio.tasks import Notifier
from pipelined.membership.connection import LocalMember
from pipelined.membership.directory import EmbeddedDirectory, Entry, serve_directory
from pipelined.membership.messaging.client import MemberClient
from pipelined.membership.messaging.messages import handle_requests, send
from pipelined.membership.messaging.reasons import Reason
from pipelined.membership.registration import registered
from pipelined.process.reporting import events
from pipelined.state.stages.versions import SAVED, SavedStage, SavedStages
from pipelined.swarm.leader.assignments import Assignments
from pipelined.swarm.leader.reassignment import EmergencyReassignment, Rollback
from pipelined.swarm.leader.stage_assigner import StageAssigner, fewest
from pipelined.swarm.peer.stage_join import StageRequester
from pipelined.swarm.protocol.work import AssignedStage, GetStage
from pipelined.swarm.records.members import LEADER, NEWCOMERS, PEERS, LeaderRecord, PeerRecord, Phase
from pipelined.swarm.records.steps import HEAD, Head
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import Rules
from transports.rpc import Rejected
from transports.rpc.virtual.network import VirtualNetwork

SERVING, JOINING, LEAVING = Phase.SERVING, Phase.JOINING, Phase.LEAVING


def record(name, stage, phase, incarnation=1):
    return PeerRecord(name, f"virtual://{name}", incarnation, stage, phase, "m")


def seen(*peers, saved=(), came=()):
    """A view of peers p0, p1, … that said in this order where they are; and when newcomers announced themselves."""
    view = SwarmView(None, None)
    view.apply(HEAD, Entry(Head(3, "m", step=5, lineage="run-5").pack(), 1))
    for name, at in dict(came).items():
        view.apply(NEWCOMERS + name, Entry(f"virtual://{name}".encode(), at))
    for at, (stage, phase) in enumerate(peers):
        say(view, f"p{at}", stage, phase, at + 1)
    for name, stages in dict(saved).items():
        view.apply(SAVED + name, Entry(SavedStages([[5, stage, 3, "run-5"] for stage in stages]).pack(), 1000))
    return view


def say(view, name, stage, phase, revision):
    """A peer says where it is."""
    view.apply(PEERS + name, Entry(record(name, stage, phase).pack(), revision))


@pytest.mark.parametrize(
    "peers, saved, stage",
    [
        ([], [], 0),
        ([(0, SERVING)], [], 1),
        ([(0, SERVING), (1, JOINING)], [], 2),
        ([(0, SERVING), (1, SERVING), (2, SERVING), (2, JOINING), (0, JOINING)], [], 1),
        ([(0, SERVING), (1, SERVING), (2, LEAVING)], [], 2),  # a leaving peer does not count
        ([(0, SERVING)], [2], 2),  # its saved state is here, and no peer has it
        ([(0, SERVING), (2, SERVING)], [2], 1),  # a peer has the state
        ([(0, SERVING), (2, JOINING)], [1, 2], 1),  # a joining peer has no state yet
        ([(0, SERVING)], [0, 1, 2], 1),  # all of them lie here, so none more than another
        ([(0, SERVING), (7, SERVING)], [], 1),  # of another model
    ],
)
def test_it_takes_what_is_lost_and_saved_here_or_else_where_the_fewest_are(peers, saved, stage):
    assert StageAssigner(seen(*peers, saved={"new": saved}), 3).stage_for("new") == stage


def test_what_was_saved_of_another_point_is_of_no_use():
    view = seen((0, SERVING))
    view.apply(SAVED + "new", Entry(SavedStages([list(SavedStage(4, 2, 3, "run-4"))]).pack(), 1000))
    assert StageAssigner(view, 3).stage_for("new") == 1


def test_where_it_was_itself_does_not_count():
    assert StageAssigner(seen((0, SERVING), (1, SERVING)), 2).stage_for("p0") == 0


def test_a_newcomer_counts_from_its_answer_on():
    placing = StageAssigner(seen((0, SERVING), came={"first": 10, "second": 11, "third": 12}), 3)
    assert [placing.stage_for(name) for name in ("first", "second", "third")] == [1, 2, 0]
    assert placing.stage_for("second") == 2, "asked again it counted itself"


def test_a_newcomer_counts_where_it_says_that_it_is_and_no_longer_where_it_was_sent():
    view = seen((0, SERVING), came={"first": 10})
    placing = StageAssigner(view, 3)
    assert placing.stage_for("first") == 1
    say(view, "first", 2, JOINING, 11)
    assert placing.stage_for("new") == 1


def test_a_newcomer_that_is_gone_counts_no_longer():
    view = seen((0, SERVING), came={"first": 10})
    placing = StageAssigner(view, 3)
    placing.stage_for("first")
    view.apply(NEWCOMERS + "first", None)
    assert placing.stage_for("new") == 1


def test_the_record_of_a_former_life_does_not_end_a_promise():
    view = seen((0, SERVING), (1, SERVING), came={"p1": 10})
    placing = StageAssigner(view, 2)
    assert placing.stage_for("p1") == 1
    say(view, "other", 7, SERVING, 11)
    assert placing.stage_for("new") == 0


def test_a_peer_counts_at_no_stage_when_it_is_gone_or_about_to_leave():
    view = seen((0, SERVING), (1, SERVING), (2, SERVING))
    say(view, "p1", 1, LEAVING, 11)
    assert view.census.count_staying(3, excluded="") == [1, 0, 1] and view.census.count_holding(1) == 1
    view.apply(PEERS + "p2", None)
    assert view.census.count_staying(3, excluded="") == [1, 0, 0] and view.census.count_holding(2) == 0
    assert [peer.name for stage in range(3) for peer in view.peers_with(stage)] == ["p0", "p1"]


def test_a_census_kept_up_is_that_of_the_records():
    """Through any changes, some of them of newcomers."""
    draw, view, sent = random.Random(1), seen(), {}
    placing = StageAssigner(view, 3)

    def is_on_its_way(name):
        return name in view.newcomers and view.record_revision(name) < view.newcomers[name].revision

    for revision in range(1, 2000):
        name = f"p{draw.randrange(20)}"
        match draw.randrange(4):
            case 0:
                view.apply(PEERS + name, None)
                view.apply(NEWCOMERS + name, None)
            case 1:
                view.apply(NEWCOMERS + name, Entry(b"virtual://x", revision))
                sent[name] = placing.stage_for(name)
            case _:
                say(view, name, draw.randrange(3), draw.choice([*Phase]), revision)
        on_their_way = {name: stage for name, stage in sent.items() if is_on_its_way(name)}
        staying = {name: peer.stage for name, peer in view.peers.items() if peer.phase in (JOINING, SERVING)}
        counts = Counter((staying | on_their_way).values())
        assert view.census.count_staying(3, excluded="") == [counts[stage] for stage in range(3)]
        for stage in range(3):
            peers = sorted((peer for peer in view.peers.values() if peer.stage == stage), key=lambda peer: peer.name)
            assert [*view.census.stage_peers(stage)] == peers
            assert view.census.count_holding(stage) == sum(peer.phase != JOINING for peer in peers)


@contextmanager
def counted():
    """Counts the instructions of Python that run in the block, in any task: the same on any machine."""
    count = Counter()

    def trace(frame, event, argument):
        frame.f_trace_opcodes = True
        count[event] += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)


FEW, MANY = 50, 2000


def of_size(peers):
    return seen(*[(at % 3, SERVING) for at in range(peers)])


def test_a_join_costs_the_leader_the_same_however_many_peers_there_are():
    def cost(view):
        placing = StageAssigner(view, 3)
        with counted() as count:
            for number in range(10):
                name, revision = f"new{number}", 10_000 + 3 * number
                view.apply(NEWCOMERS + name, Entry(f"virtual://{name}".encode(), revision))
                stage = placing.stage_for(name)
                say(view, name, stage, JOINING, revision + 1)
                say(view, name, stage, SERVING, revision + 2)
        return count["opcode"]

    assert 0 < cost(of_size(MANY)) < 1.1 * cost(of_size(FEW))


def test_what_the_leader_does_about_a_change_costs_the_same_however_many_peers_there_are():
    """It looks for stages that are lost or deserted, and takes back what a peer had that is gone."""

    async def cost(peers):
        view, rules, clock = of_size(peers), Rules("m", 3, 4, 4, rebalance_s=1.0), VirtualClock()
        assignments = Assignments(view, SimpleNamespace(latency=SimpleNamespace(forget=lambda left: None)), Notifier())
        ways = (
            assignments.watch(),
            EmergencyReassignment(view, rules, clock).wait(),
            Rollback(view, rules, clock, False).wait(),
        )
        tasks = [asyncio.ensure_future(way) for way in ways]
        await clock.sleep(1.0)
        with counted() as count:
            for number in range(5):
                say(view, "new", 1, SERVING, 10_000 + number)
                view.notify()
                await clock.sleep(1.0)
                view.apply(PEERS + "new", None)
                view.notify()
                await clock.sleep(1.0)
        for task in tasks:
            task.cancel()
        return count["opcode"]

    few, many = (run_virtual(cost(peers)) for peers in (FEW, MANY))
    assert 0 < many < 1.1 * few


def test_a_stage_that_is_kept_again_at_the_end_of_the_wait_gets_no_peer():
    """The change and the end of the wait fall into one turn of the loop; then there is nothing to commit."""
    view = seen((0, SERVING), (0, SERVING), (1, Phase.DRAINING))

    class Clock(VirtualClock):
        async def sleep(self, seconds):
            if len(view.peers) == 3:
                say(view, "p3", 1, SERVING, 10)

    async def main():
        waiting = asyncio.ensure_future(EmergencyReassignment(view, Rules("m", 2, 4, 4), Clock()).wait())
        await VirtualClock().sleep(1.0)
        assert not waiting.done()
        view.apply(PEERS + "p3", None)
        view.apply(PEERS + "p4", Entry(record("p4", 0, SERVING).pack(), 11))
        view.notify()
        return await waiting

    assert list(run_virtual(main()).values()) == [1]


def test_a_later_step_that_becomes_whole_while_the_leader_waits_is_the_one_it_begins_at():
    """A peer with one stage of a later step joins just before the wait ends, and the others a moment later."""
    view, clock = SwarmView(None, None), VirtualClock()

    def say_saved(name, step, *stages):
        marks = [[step, stage, 2, f"run-{step}"] for stage in stages]
        view.apply(SAVED + name, Entry(SavedStages(marks).pack(), 1))
        view.notify()

    async def main():
        waiting = asyncio.ensure_future(Rollback(view, Rules("m", 2, 4, 4, lease_s=3.0), clock, True).wait())
        say_saved("a", 50, 0, 1)
        await clock.sleep(5.9)
        say_saved("b", 100, 0)
        await clock.sleep(5.9)
        assert not waiting.done()
        say_saved("c", 100, 1)
        assert (await waiting).step == 100
        return clock.now()

    assert run_virtual(main()) == pytest.approx(5.9 + 6.0)


def test_departures_hold_the_last_record_of_each_peer():
    view = seen((0, SERVING), (1, SERVING), (2, SERVING))
    with view.census.departures() as gone, view.census.departures() as others:
        say(view, "p0", 1, LEAVING, 10)
        assert not gone
        view.apply(PEERS + "p0", None)
        view.apply(PEERS + "p1", Entry(record("p1", 1, JOINING, incarnation=2).pack(), 11))
        assert [(peer.name, peer.phase, peer.incarnation) for peer in gone] == [("p0", LEAVING, 1), ("p1", SERVING, 1)]
        gone.clear()
        assert len(others) == 2
    view.apply(PEERS + "p2", None)
    assert not gone


class Came3:
    """A swarm of three stages with a leader that replies to newcomers, a directory, and one endpoint for each name."""

    def __init__(self, network, tasks):
        self.network, self.tasks, self.clock = network, tasks, VirtualClock()
        self.beside = [tasks.create_task(serve_directory(network.endpoint("directory"), self.clock))]

    def party(self, name):
        endpoint = self.network.endpoint(name)
        local = LocalMember(name, endpoint, EmbeddedDirectory(endpoint, "virtual://directory", self.clock), self.clock)
        view = SwarmView(local.directory, self.clock)
        self.beside.append(self.tasks.create_task(view.follow()))
        return local, view

    async def lead(self, name, response=None):
        local, view = self.party(name)
        handle_requests(local.endpoint, GetStage, response or StageAssigner(view, 3).assign)
        await view.directory.transact({}, {LEADER: LeaderRecord(name, local.endpoint.address).pack()})

    async def come(self, name, pause=0.0):
        local, view = self.party(name)
        await self.clock.sleep(pause)
        async with registered(view.directory, PEERS + name, 60.0, self.clock) as place:
            stage = await StageRequester(local, view, MemberClient(local.endpoint, view), 3).send(place)
            await place.put(record(name, stage, JOINING, place.incarnation))
            await self.clock.sleep(1.0)
        return stage


def played(story, **network):
    async def main():
        async with asyncio.TaskGroup() as tasks:
            swarm = Came3(VirtualNetwork(**network), tasks)
            await story(swarm)
            for task in swarm.beside:
                task.cancel()

    run_virtual(main())


@pytest.mark.parametrize("peers", [1, 2, 30])
@pytest.mark.parametrize("seed", range(3))
def test_many_that_come_at_once_are_spread_evenly_at_once(peers, seed):
    async def story(swarm):
        draw = random.Random(seed)
        await swarm.lead("leader")
        pauses = [draw.choice([0.0, draw.uniform(0.0, 0.05)]) for _ in range(peers)]
        stages = await asyncio.gather(*(swarm.come(f"p{at}", pause) for at, pause in enumerate(pauses)))
        assert sorted(stages) == sorted(at % 3 for at in range(peers))
        assert swarm.clock.now() < 1.5, "they waited for one another"

    played(story, seed=seed, delay=1e-2, jitter=5e-3)


def test_where_no_trainer_leads_a_newcomer_waits_for_one_and_asks_the_next_where_one_refuses_or_dies():
    async def story(swarm):
        coming = asyncio.ensure_future(swarm.come("p0"))

        async def refuse(request, sender):
            raise Rejected(Reason.NOT_LEADING)

        await swarm.clock.sleep(5.0)
        await swarm.lead("refuses", refuse)
        await swarm.clock.sleep(1.0)
        assert not coming.done()
        await swarm.lead("answers")
        assert await coming == 0

    played(story)


@pytest.mark.parametrize(
    "response, why",
    [
        (Rejected(Reason.NOT_LEADING), "not leading"),
        (AssignedStage(7), "the leader assigned stage 7, but the model has 3 stages"),
    ],
    ids=["refused", "no such stage"],
)
def test_each_reason_for_no_stage_is_reported_once(response, why):
    async def story(swarm):
        async def place(request, sender):
            if isinstance(response, Rejected):
                raise response
            return response

        coming = asyncio.ensure_future(swarm.come("p0"))
        await swarm.lead("leader", place)
        await swarm.clock.sleep(5.0)
        coming.cancel()
        told = [event.facts for event in events.recent() if event.kind == "no stage given"]
        assert told == [{"peer": "p0", "leader": "leader", "why": why}]

    played(story)


def test_a_peer_that_is_not_in_the_directory_gets_no_stage():
    async def story(swarm):
        await swarm.lead("leader")
        stranger, view = swarm.party("stranger")
        await view.directory.transact({}, {NEWCOMERS + "other": b"virtual://elsewhere"})
        for name in ("never", "other"):
            with pytest.raises(Rejected, match="stranger"):
                await send(stranger.endpoint, "virtual://leader", GetStage(name))

    played(story)


def test_a_newcomer_goes_where_the_fewest_are():
    assert [fewest([3, 1, 2]), fewest([2, 1, 1]), fewest([0])] == [1, 1, 0]
