"""A node writes about its cluster only while its incarnation is listed and its clusters are the last."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from pipelined.aio.clock import VirtualClock
from pipelined.membership.directory import EmbeddedDirectory, serve_directory
from pipelined.membership.registration import registered
from pipelined.membership.view import NoLongerValid
from pipelined.ravnest.node.cluster_records import PATIENCE_LEASES, ClusterRecords
from pipelined.ravnest.records.generation import ENDING, GENERATION, BackupPlace, Generation, GenerationEnding
from pipelined.ravnest.records.nodes import NODES, NodeRecord
from pipelined.ravnest.records.places import Holder, StagePlace
from pipelined.ravnest.records.progress import PROGRESS, ROUND, ClusterProgress, ClusterStop, RoundEnd, RoundRecord
from pipelined.ravnest.records.view import RavnestView
from pipelined.training.segments.step_report import StepReport
from transports import PeerLost, TransportError
from transports.rpc.virtual.network import VirtualNetwork, address_of

pytestmark = pytest.mark.virtual


async def story(stack):
    """A directory, and a node in a cluster of its own: the directory, its registration, its records and its view."""
    network, clock = VirtualNetwork(), VirtualClock()
    tasks = await stack.enter_async_context(asyncio.TaskGroup())
    running = [tasks.create_task(serve_directory(network.endpoint("directory"), clock))]
    directory = EmbeddedDirectory(network.endpoint("a"), address_of("directory"), clock)
    view = RavnestView(directory, clock)
    running.append(tasks.create_task(view.follow()))
    stack.callback(lambda: [task.cancel() for task in running])
    registration = await stack.enter_async_context(registered(directory, NODES + "a", 1.0, clock, "at a"))
    await registration.put(NodeRecord("a", "at a", registration.incarnation, 1, 1.0, 0.0))
    generation = Generation(1, [[StagePlace(Holder("a", "at a", registration.incarnation), 0, 3, 1)]])
    await directory.transact({}, {GENERATION: generation.pack()})
    await view.wait_for(lambda: view.current_generation == generation)
    return directory, registration, ClusterRecords(view, registration, generation, 0, clock), view


async def test_a_round_is_written_and_committed():
    async with AsyncExitStack() as stack:
        _, _, records, _ = await story(stack)
        assert await records.complete(1, records.commit(1), lambda: True) is RoundEnd.COMMITTED


@pytest.mark.parametrize("step", [-1, 1, 10**12 + 1])
async def test_a_step_that_is_not_the_cluster_s_is_replaced(step):
    """A node that looked for the turn of such a step among its own turns never came to an end."""
    async with AsyncExitStack() as stack:
        directory, registration, _, view = await story(stack)
        place = StagePlace(Holder("a", "at a", registration.incarnation), 0, 3, 1)
        both = Generation(2, [[place], [StagePlace(Holder("b", "at b", 9), 0, 3, 1)]])
        wrong = ClusterProgress(2, step, 1.0, [], 0.0, "")
        await directory.transact({}, {GENERATION: both.pack(), f"{PROGRESS}0": wrong.pack()})
        await view.wait_for(lambda: view.current_generation == both and "0" in view.progress)
        records = ClusterRecords(view, registration, both, 0, VirtualClock())
        records.report(StepReport(0, 2.5, 0.0, 0.1, 1.0, 0.0, stop=False))
        records.end("")
        await records.write_steps()
        await view.wait_for(lambda: view.progress["0"].step == 0)


async def test_clusters_have_ended_when_later_ones_end_too():
    """A node that another kept in its worlds sees only then that its clusters ended."""
    async with AsyncExitStack() as stack:
        directory, _, records, _ = await story(stack)
        await directory.transact({}, {ENDING: GenerationEnding(2).pack()})
        assert await records.wait_for_end() == 0


async def test_a_round_of_clusters_that_end_does_not_stand():
    async with AsyncExitStack() as stack:
        directory, _, records, view = await story(stack)
        await directory.transact({}, {ENDING: GenerationEnding(1).pack()})
        await records.commit(1)  # before this node has seen it
        assert ROUND not in (await directory.read(ROUND)).entries
        assert await records.wait_for_end() == 0 and records.ends()
        assert await records.complete(1, records.commit(1), lambda: True) is RoundEnd.GENERATION_ENDS
        await records.stop(ClusterStop(1, 0, [0, 2]))
        await view.wait_for(lambda: view.stopped)


async def lost():
    raise PeerLost(1, "its connection broke")


async def two_clusters(stack, is_listed):
    """The directory, and the records of the node of the first of two clusters; whether the other's node is listed."""
    directory, registration, _, view = await story(stack)
    other = await stack.enter_async_context(registered(directory, NODES + "b", 1.0, VirtualClock(), "at b"))
    if is_listed:
        await other.put(NodeRecord("b", "at b", other.incarnation, 1, 1.0, 0.0))
    incarnations = {"a": registration.incarnation, "b": other.incarnation}
    both = Generation(2, [[StagePlace(Holder(name, f"at {name}", at), 0, 3, 1)] for name, at in incarnations.items()])
    await directory.transact({}, {GENERATION: both.pack()})
    await view.wait_for(lambda: view.generation == both and is_listed != bool(view.missing(both)))
    return directory, ClusterRecords(view, registration, both, 0, VirtualClock())


async def test_a_round_waits_for_the_end_where_its_work_fails_and_a_node_is_missing():
    async with AsyncExitStack() as stack:
        directory, records = await two_clusters(stack, is_listed=False)
        completing = asyncio.ensure_future(records.complete(1, lost(), lambda: False))
        await VirtualClock().sleep(100.0)
        assert not completing.done()
        await directory.transact({}, {ENDING: GenerationEnding(2).pack()})
        assert await completing is RoundEnd.GENERATION_ENDS


async def test_the_first_cluster_leaves_after_the_others_where_these_do_not():
    """They confirmed to a backup of its first node, which died before it committed the round: they waited for ever."""
    async with AsyncExitStack() as stack:
        _, records = await two_clusters(stack, is_listed=True)
        completing = asyncio.ensure_future(records.complete(1, lost(), lambda: False))
        await VirtualClock().sleep(1.5 * PATIENCE_LEASES)
        assert not completing.done()
        await VirtualClock().sleep(PATIENCE_LEASES)
        with pytest.raises(PeerLost):
            await completing


async def test_a_node_that_lost_its_lease_writes_nothing():
    async with AsyncExitStack() as stack:
        directory, registration, records, _ = await story(stack)
        await registration.lease.revoke()
        with pytest.raises(NoLongerValid, match="has left its cluster"):
            await records.commit(1)
        assert ROUND not in (await directory.read(ROUND)).entries


async def test_a_node_writes_nothing_about_clusters_that_others_followed():
    async with AsyncExitStack() as stack:
        directory, _, records, view = await story(stack)
        newer = Generation(9, [[StagePlace(Holder("b", "at b", 99), 0, 3, 1)]])
        await directory.transact({}, {GENERATION: newer.pack(), ROUND: RoundRecord(9, 4).pack()})
        with pytest.raises(NoLongerValid):
            await records.commit(1)
        await view.wait_for(lambda: view.rounds_of(newer) == 4)


async def beside_a_backup(stack, directory, first):
    """The clusters of this node and a backup, which end; the backup's registration, and these clusters."""
    second = await stack.enter_async_context(registered(directory, NODES + "b", 1.0, VirtualClock(), "at b"))
    await second.put(NodeRecord("b", "at b", second.incarnation, 1, 1.0, 0.0))
    row = [StagePlace(Holder("a", "at a", first.incarnation), 0, 3, 1)]
    both = Generation(2, [row], backups=[BackupPlace(0, 0, Holder("b", "at b", second.incarnation))])
    await directory.transact({}, {GENERATION: both.pack(), ENDING: GenerationEnding(2).pack()})
    return second, both


async def test_a_slower_backup_stays_in_the_clusters_that_went_on_before_it_stopped():
    """Its first node has written where the cluster stopped, and `train` the clusters that follow, with both nodes."""
    async with AsyncExitStack() as stack:
        directory, first, _, view = await story(stack)
        second, both = await beside_a_backup(stack, directory, first)
        await view.wait_for(lambda: view.current_generation == both)
        both_records = [ClusterRecords(view, each, both, 0, VirtualClock()) for each in (first, second)]
        stopped = ClusterStop(2, 0, [0])
        slower = asyncio.ensure_future(both_records[1].stop(stopped))
        await VirtualClock().sleep(0.5)
        assert not slower.done()
        await both_records[0].stop(stopped)
        await slower
        await directory.transact({}, {GENERATION: replace(both, number=3).pack()})
        await view.wait_for(lambda: view.generation != both)
        await both_records[1].stop(stopped)


async def test_a_backup_writes_where_its_cluster_stopped_when_the_first_node_has_left():
    async with AsyncExitStack() as stack:
        directory, first, _, view = await story(stack)
        second, both = await beside_a_backup(stack, directory, first)
        await view.wait_for(lambda: view.current_generation == both)
        stopping = asyncio.ensure_future(
            ClusterRecords(view, second, both, 0, VirtualClock()).stop(ClusterStop(2, 0, []))
        )
        await first.lease.revoke()
        await stopping
        await view.wait_for(lambda: view.stops(both))


async def test_a_node_without_the_average_of_a_committed_round_leaves_it_to_the_other_node_of_its_place():
    async with AsyncExitStack() as stack:
        _, _, records, _ = await story(stack)

        async def lost():
            await records.commit(1)
            raise PeerLost(1, "it died")

        with pytest.raises(TransportError, match="round 1 is committed, and this node has not the average"):
            await records.complete(1, lost(), lambda: False)
