"""A swarm's view has the committed step with its members, as far as this process follows them."""

import asyncio
from dataclasses import replace

from pipelined.aio.clock import VirtualClock, run_virtual
from pipelined.state.stages.versions import SavedStages
from pipelined.swarm.records.members import TRAINERS, TrainerRecord
from pipelined.swarm.records.steps import HEAD, MEMBERS_KEYS, Head, LostStages, members_key
from pipelined.swarm.records.view import SwarmView
from tests.unit.pipelined.swarm.records.followed import followed, put


def test_a_view_of_one_stage_has_its_peers_and_the_records_for_all_and_no_others():
    async def story(view, directory):
        lease = await directory.grant(60.0)
        for number in range(6):
            await put(directory, lease, f"p{number}", number % 3)
        trainer = TrainerRecord("t", "virtual://t", 1, "model").pack()
        saved = SavedStages([]).pack()
        await directory.transact({}, {f"{TRAINERS}t": trainer, "saved/p1": saved, "lost": LostStages([2]).pack()})
        await view.follow_stages({1})
        assert set(view.peers) == {"p1", "p4"} == {peer.name for peer in view.serving(1)}
        assert (set(view.trainers), view.saved, view.lost_stages) == ({"t"}, {}, {2})
        before = view.revision
        await put(directory, lease, "elsewhere", 2)
        revision = (await put(directory, lease, "p7", 1)).revision
        await view.wait_for(lambda: view.revision > before)
        assert view.revision == revision and "elsewhere" not in view.peers, "a record of another stage was sent"
        assert view.record_revision("p7") == revision

    run_virtual(followed(story, frozenset()))


def test_a_head_has_the_members_of_the_stages_that_are_followed():
    members = [[f"p{stage}"] for stage in range(MEMBERS_KEYS + 2)]
    head = Head(len(members), "model", step=1, members=members)

    async def story(view, directory):
        every = SwarmView(directory, VirtualClock())
        following = asyncio.ensure_future(every.follow())
        assert len(Head.unpack(head.entries({})[HEAD]).pack()) < 200, "every process reads it"
        await directory.transact({}, head.entries({}))
        await view.follow_stages({1})
        await every.wait_for(lambda: every.head is not None)
        assert every.head == head
        assert view.head.had_member("p1", 1) and not view.head.had_member("p2", 2)
        assert view.head.was_summed
        back = Head(len(members), "model", step=0)
        revision = await directory.transact({}, back.entries({}))
        await view.wait_for(lambda: view.revision >= revision)
        assert view.head == back and not view.head.was_summed, "members of another step were taken for its own"
        following.cancel()

    run_virtual(followed(story, frozenset()))


def test_members_are_of_the_last_step_that_listed_them_and_an_unreadable_list_is_written_again():
    head = Head(2, "model", step=1, members=[["a"], ["b"]])

    async def story(view, directory):
        async def put(entries):
            revision = await directory.transact({}, entries)
            await view.wait_for(lambda: view.revision >= revision)

        await put(head.entries({}))
        after = replace(head, step=2)
        await put(after.entries(view.step_members))
        assert view.head == after
        await put({members_key(1): b"no record"})
        assert members_key(1) in view.unreadable and view.head.had_member("a", 0)
        assert not view.head.had_member("b", 1)
        await put(replace(after, step=3).entries(view.step_members))
        assert view.head == replace(head, step=3) and not view.unreadable

    run_virtual(followed(story))
