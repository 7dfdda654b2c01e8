"""`train` lets others go on after a lost cluster, unless all clusters have trained their last step meanwhile."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from pipelined.aio.clock import VirtualClock
from pipelined.aio.tasks import cancel_and_wait, with_timeout
from pipelined.errors import UsageError
from pipelined.membership.connection import LocalMember
from pipelined.membership.directory import CutOff, DirectoryRefusal, EmbeddedDirectory, WrongKey, serve_directory
from pipelined.membership.registration import registered
from pipelined.membership.task_record import TASK
from pipelined.ravnest.forming.cluster_former import ClusterFormer
from pipelined.ravnest.planning.plan import PoolRequest
from pipelined.ravnest.planning.stage_sizes import LayerSize
from pipelined.ravnest.records.generation import ENDING, GENERATION, Generation, GenerationEnding
from pipelined.ravnest.records.nodes import DEPARTURES, NODES, WAITS, DepartureCounts, NodeRecord, WaitingNodes
from pipelined.ravnest.records.places import Holder, StagePlace
from pipelined.ravnest.records.progress import PROGRESS, STOPPED, ClusterProgress, ClusterStop
from tests.ravnest.story import at_once
from transports import Nursery
from transports.rpc.virtual.network import VirtualNetwork, address_of

pytestmark = pytest.mark.virtual


class SlowWriter(EmbeddedDirectory):
    """A client of which each write of clusters arrives after another process wrote something."""

    async def transact(self, expect, put=(), *more):
        if GENERATION in put:
            await self.meanwhile()
        return await super().transact(expect, put, *more)


async def test_clusters_that_are_done_meanwhile_are_followed_by_none():
    """The digest of a lost cluster arrives when `train`, which has not seen it, writes the clusters that go on."""
    async with AsyncExitStack() as stack:
        network, clock, said = VirtualNetwork(), VirtualClock(), []
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        serving = tasks.create_task(serve_directory(network.endpoint("directory"), clock))
        stack.callback(serving.cancel)
        local, train = (network.endpoint(name) for name in ("a", "train"))
        directory = EmbeddedDirectory(local, address_of("directory"), clock)
        registration = await stack.enter_async_context(registered(directory, NODES + "a", 1.0, clock, "at a"))
        await registration.put(NodeRecord("a", "at a", registration.incarnation, 1, 1.0, 0.0))
        left, lost = (
            StagePlace(Holder("a", "at a", registration.incarnation), 0, 3, 1),
            StagePlace(Holder("b", "at b", 99), 0, 3, 1),
        )
        generation, done = Generation(1, [[left], [lost]]), ClusterProgress(1, 3, 0.5, [], 0.1, "digest").pack()
        begun = {GENERATION: generation.pack(), ENDING: GenerationEnding(1).pack(), f"{PROGRESS}0": done}
        await directory.transact({}, {**begun, f"{STOPPED}0": ClusterStop(1, 4, []).pack()})
        slow = SlowWriter(train, address_of("directory"), clock)
        slow.meanwhile = lambda: directory.transact({}, {f"{PROGRESS}1": done})
        former = ClusterFormer(LocalMember("train", train, slow, clock), 1, PoolRequest((), ()), print, said.append)
        await former.run()
        assert said[-1] == "average digest"
        assert (await directory.read(GENERATION)).entries[GENERATION].value == generation.pack()


class CutOffWriter(EmbeddedDirectory):
    """A client that is cut off at its first write of each key, after the directory has made it or before."""

    def __init__(self, *arguments, written):
        super().__init__(*arguments)
        self.written, self.cut_off = written, []

    async def transact(self, expect, put=(), *more):
        if (keys := sorted(put)) in self.cut_off:
            return await super().transact(expect, put, *more)
        self.cut_off.append(keys)
        if self.written:
            await super().transact(expect, put, *more)
        raise CutOff("no reply")


@pytest.mark.parametrize("written", [False, True])
async def test_a_train_that_is_cut_off_at_each_write_goes_on(written):
    """A cluster is lost: `train` writes the loss, the end of the others, and the clusters that follow."""
    async with AsyncExitStack() as stack:
        network, clock = VirtualNetwork(), VirtualClock()
        tasks = await stack.enter_async_context(Nursery())
        serving = tasks.create_task(serve_directory(network.endpoint("directory"), clock))
        nodes = EmbeddedDirectory(network.endpoint("a"), address_of("directory"), clock)
        registration = await stack.enter_async_context(registered(nodes, NODES + "a", 1.0, clock, "at a"))
        await registration.put(NodeRecord("a", "at a", registration.incarnation, 1000, 1.0, 1.0))
        asyncio.get_running_loop().run_in_executor = at_once
        train = network.endpoint("train")
        own = CutOffWriter(train, address_of("directory"), clock, written=written)
        request = PoolRequest((), (LayerSize(parameters=1, activation_bytes=4, input_bytes=0, work=1.0),), clusters=1)
        former = ClusterFormer(LocalMember("train", train, own, clock), 1, request, print, print)
        forming = tasks.create_task(former.run())
        async for changes in nodes.watch(GENERATION, 0):
            first = Generation.unpack(changes[0].entry.value)
            break
        lost, number = StagePlace(Holder("b", "at b", 99), 0, 1, 1), first.number + 1
        await nodes.transact({}, {GENERATION: Generation(number, [first.clusters[0], [lost]]).pack()})
        async for _ in nodes.watch(ENDING, 0):
            break
        seen = (await nodes.read(GENERATION)).revision
        await nodes.transact({}, {f"{STOPPED}0": ClusterStop(number, 4, []).pack()})
        async for changes in nodes.watch(GENERATION, seen):
            assert Generation.unpack(changes[0].entry.value).number > number
            break
        await cancel_and_wait(forming, serving)
        assert sorted(own.cut_off) == [[GENERATION], [ENDING], [DEPARTURES]]


class RefusedClient(EmbeddedDirectory):
    """A client that its directory refuses after the first change."""

    async def watch(self, prefix, after):
        async for _ in super().watch(prefix, after):
            raise self.error
        yield


@pytest.mark.parametrize(
    "error", [DirectoryRefusal("no journal"), WrongKey("another key")], ids=["other directory", "wrong key"]
)
async def test_a_train_that_its_directory_refuses_ends(error):
    """The coordinator was started again without its journal, or with another key: `train` tried again for ever."""
    async with AsyncExitStack() as stack:
        network, clock = VirtualNetwork(), VirtualClock()
        tasks = await stack.enter_async_context(Nursery())
        serving = tasks.create_task(serve_directory(network.endpoint("directory"), clock))
        train = network.endpoint("train")
        own = RefusedClient(train, address_of("directory"), clock)
        own.error = error
        task = await own.transact({}, {TASK: b"what is trained"})
        with pytest.raises(type(error)):
            former = ClusterFormer(
                LocalMember("train", train, own, clock), 1, PoolRequest((), ()), print, print, task=task
            )
            await with_timeout(clock, 60.0, former.run())
        await cancel_and_wait(serving)


async def test_nodes_that_cannot_hold_the_model_are_told_before_train_ends_and_another_training_is_formed():
    """They went on waiting for a number of nodes that was there; one that knows the former training is not taken."""
    async with AsyncExitStack() as stack:
        network, clock = VirtualNetwork(), VirtualClock()
        tasks = await stack.enter_async_context(Nursery())
        serving = tasks.create_task(serve_directory(network.endpoint("directory"), clock))
        nodes = EmbeddedDirectory(network.endpoint("a"), address_of("directory"), clock)
        first = await nodes.transact({}, {TASK: b"too large"})
        registration = await stack.enter_async_context(registered(nodes, NODES + "a", 1.0, clock, "at a"))
        local = NodeRecord("a", "at a", registration.incarnation, 10, 1.0, 1.0, task=first)
        await registration.put(local)
        asyncio.get_running_loop().run_in_executor = at_once
        train = network.endpoint("train")
        own, said = EmbeddedDirectory(train, address_of("directory"), clock), []

        def forming(parameters, task, nodes=1):
            layers = (LayerSize(parameters=parameters, activation_bytes=0, input_bytes=0, work=1.0),)
            request = PoolRequest((), layers, clusters=1)
            return ClusterFormer(
                LocalMember("train", train, own, clock), nodes, request, print, said.append, task=task
            ).run()

        with pytest.raises(UsageError, match="larger than every node"):
            await forming(1000, first)
        waits = WaitingNodes.unpack((await nodes.read(WAITS)).entries[WAITS].value)
        assert waits.fact.startswith("for another `train`: this one forms no clusters of them (")
        waiting = asyncio.ensure_future(forming(1, first, nodes=2))
        await clock.sleep(1.0)
        assert said[-1] == "train: waits for 1 more node (1 of 2 here)"
        second = await nodes.transact({}, {TASK: b"small enough"})
        with pytest.raises(UsageError, match="another `train` has replaced what is trained"):
            await waiting
        trained = tasks.create_task(forming(1, second))
        await clock.sleep(1.0)
        assert GENERATION not in (await nodes.read(GENERATION)).entries
        await registration.put(replace(local, ram=1000, task=second))
        async for changes in nodes.watch(GENERATION, second):
            assert Generation.unpack(changes[0].entry.value).clusters[0][0].holder.name == "a"
            break
        await cancel_and_wait(trained, serving)


async def formed(request, departures=None, **offered):
    """The clusters that `train` writes for nodes a, b and c, which offer the same; the last of them may be a backup."""
    async with AsyncExitStack() as stack:
        network, clock = VirtualNetwork(), VirtualClock()
        tasks = await stack.enter_async_context(Nursery())
        serving = tasks.create_task(serve_directory(network.endpoint("directory"), clock))
        directory = EmbeddedDirectory(network.endpoint("nodes"), address_of("directory"), clock)
        for name in "abc":
            registration = await stack.enter_async_context(
                registered(directory, NODES + name, 1.0, clock, f"at {name}")
            )
            offer = {"ram": 1000, "bandwidth": 1.0, "flops": 1.0} | offered
            await registration.put(NodeRecord(name, f"at {name}", registration.incarnation, **offer))
        if departures is not None:
            await directory.transact({}, {DEPARTURES: departures.pack()})
        asyncio.get_running_loop().run_in_executor = at_once
        train = network.endpoint("train")
        own = EmbeddedDirectory(train, address_of("directory"), clock)
        former = ClusterFormer(LocalMember("train", train, own, clock), 3, request, print, print)
        forming = tasks.create_task(former.run())
        async for changes in directory.watch(GENERATION, 0):
            await cancel_and_wait(forming, serving)
            return Generation.unpack(changes[0].entry.value)


async def test_where_nodes_tell_speeds_and_delays_the_law_decides_how_many_are_alive():
    """Stages of 30 s and lines of 30 s a way: 7, 4, 1; without speeds as many as stages."""
    layer = LayerSize(parameters=1, activation_bytes=4, input_bytes=0, work=30.0)
    request = PoolRequest((), (layer,) * 3, clusters=1)
    (row,) = (await formed(request, delay=30.0)).clusters
    assert [place.alive for place in row] == [7, 4, 1]
    (row,) = (await formed(request, delay=30.0, flops=0.0)).clusters
    assert [place.alive for place in row] == [3, 2, 1]


async def test_losses_that_the_directory_has_decide_which_place_is_backed_up():
    """A new `train` has seen none of them."""
    layer = LayerSize(parameters=1, activation_bytes=4, input_bytes=4, work=1.0)
    request = PoolRequest((), (layer,) * 2, clusters=1, backups=1)
    for name in "ab":
        generation = await formed(request, DepartureCounts({name: [2, 1]}))
        (backup,) = generation.backups
        assert generation.clusters[0][backup.stage].holder.name == name
