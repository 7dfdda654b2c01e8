"""A node reads what was saved from its own directory, or from the nodes that hold it; a wrong reply is not used."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from pipelined.aio.clock import VirtualClock
from pipelined.errors import UsageError
from pipelined.membership.connection import LocalMember
from pipelined.membership.directory import EmbeddedDirectory, serve_directory
from pipelined.membership.registration import registered
from pipelined.membership.view import NoLongerValid
from pipelined.ravnest.records.generation import Generation
from pipelined.ravnest.records.nodes import NODES, NodeRecord
from pipelined.ravnest.records.places import Holder, StagePlace
from pipelined.ravnest.records.view import RavnestView
from pipelined.ravnest.stage.parameter_exchange import TOPIC, ParameterExchange
from pipelined.ravnest.stage.saving import SaveSettings
from pipelined.state.stages.chunks import DIGEST, Manifest, describe
from pipelined.state.stages.store import DiskStore
from pipelined.state.stages.versions import SavedStage, Version
from pipelined.state.tensor_specs import specs_of
from tests.ravnest.story import at_once
from transports import Block
from transports.rpc import Rejected, Response
from transports.rpc.virtual.network import VirtualNetwork, address_of

pytestmark = pytest.mark.virtual
AT = Version(6, "run-1")
STATE = {f"{name}/value": np.full(3, at, np.float32) for at, name in enumerate("abc")}
MANIFEST = describe({"c/value": STATE["c/value"]}).pack()


def sent(state):
    """A reply with this state, whole."""
    return Response((describe(state).pack(), *state.values()))


def claimed(*shape):
    """A reply with a manifest of a shape, one digest, and no tensor."""
    return Response((Manifest({"c/value": ("float32", shape)}, bytes(DIGEST), 1 << 60).pack(),))


@asynccontextmanager
async def nodes(path, **stages_by_name):
    """Nodes by name, of which each saved these stages of three: `ParameterExchange`, and its view."""
    async with AsyncExitStack() as stack:
        network, clock = VirtualNetwork(), VirtualClock()
        asyncio.get_running_loop().run_in_executor = at_once
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        running = [tasks.create_task(serve_directory(network.endpoint("directory"), clock))]
        stack.callback(lambda: [task.cancel() for task in running])
        exchanges = {}
        for name, stages in stages_by_name.items():
            store = DiskStore(path / name, {})
            for stage in stages:
                key = f"{'abc'[stage]}/value"
                store.save(SavedStage(AT.step, stage, 3, AT.lineage), {key: STATE[key]})
            endpoint = network.endpoint(name)
            directory = EmbeddedDirectory(endpoint, address_of("directory"), clock)
            view = RavnestView(directory, clock)
            running.append(tasks.create_task(view.follow()))
            saving = SaveSettings(store, 1, "run") if stages else None
            exchanges[name] = ParameterExchange(LocalMember(name, endpoint, directory, clock), view, saving)
            lease = registered(directory, NODES + name, 1.0, clock, endpoint.address)
            registration = await stack.enter_async_context(lease)
            await exchanges[name].publish(registration)
            await registration.put(NodeRecord(name, endpoint.address, registration.incarnation, 1, 1.0, 0.0))
            exchanges[name].view = view
        for each in exchanges.values():
            await each.view.wait_for(lambda each=each: len(each.view.nodes) == len(stages_by_name))
        yield exchanges


async def load(local, state=STATE):
    return {key: block.numpy() async for part in local.load(AT, specs_of(state)) for key, block in part.items()}


def same(state):
    return state.keys() == STATE.keys() and all(np.array_equal(state[key], value) for key, value in STATE.items())


async def test_nodes_give_one_another_what_they_lack(tmp_path):
    async with nodes(tmp_path, x=[0], y=[1, 2], z=[]) as exchanges:
        assert [each.view.saved_version for each in exchanges.values()] == 3 * [AT]
        assert same(await load(exchanges["x"])) and same(await load(exchanges["z"]))


async def test_a_parameter_larger_than_a_reply_comes_in_chunks_and_is_read_once(monkeypatch, tmp_path):
    """By the node that gives it; the other one looks into its own directory first."""
    monkeypatch.setattr("pipelined.ravnest.stage.parameter_exchange.CHUNK", 5)
    async with nodes(tmp_path, x=[0], y=[1, 2]) as exchanges:
        read, sizes = [], []
        monkeypatch.setattr(DiskStore, "read", lambda self, *at, own=DiskStore.read: read.append(at) or own(self, *at))
        reply = exchanges["y"]._reply

        async def counted(request):
            response = await reply(request)
            sizes.append(sum(Block.of(part).nbytes for part in response.blocks[1:]))
            return response

        exchanges["y"]._local.endpoint.handle(TOPIC, counted)
        assert same(await load(exchanges["x"]))
        assert sizes == [5, 5, 2, 5, 5, 2] and [at[1] for at in read].count("b") == 2


async def test_a_step_of_which_a_stage_is_held_by_no_node_is_not_begun_with(tmp_path):
    async with nodes(tmp_path, x=[0], y=[2]) as exchanges:
        assert exchanges["x"].view.saved_version == Version(0, "")
        with pytest.raises(NoLongerValid, match=r"no node gives b of step 6 \(x, y\)"):
            await load(exchanges["x"])


@pytest.mark.parametrize(
    "reply",
    [
        Response((MANIFEST, np.zeros(3, np.float32))),
        Response((MANIFEST,)),
        Response((np.zeros(3, np.float32),)),
        Response(()),
        Rejected("failed"),
        claimed(1 << 44),
        claimed(3.0),
        sent({"c/value": np.zeros(3)}),
        sent({"c/value": np.zeros((1, 3), np.float32)}),
        sent({"d/value": np.zeros(3, np.float32)}),
        sent({"c/value": STATE["c/value"], "d/value": np.zeros(3)}),
    ],
)
async def test_after_a_wrong_reply_the_next_node_gets_the_request(tmp_path, reply):
    async def give(request):
        if isinstance(reply, Rejected):
            raise reply
        return reply

    async with nodes(tmp_path, x=[0], y=[1, 2], z=[2]) as exchanges:
        exchanges["y"]._local.endpoint.handle(TOPIC, give)
        loaded = await load(exchanges["x"], {"c/value": STATE["c/value"]})
        assert list(loaded) == ["c/value"] and (loaded["c/value"] == STATE["c/value"]).all()


@pytest.mark.parametrize(
    "note", [None, [6, "run-1", "a"], ["6", "run-1", "a", 0], [6, "run-1", b"a", 0], [6, "run-1", "a", 1]]
)
async def test_a_malformed_request_is_rejected(tmp_path, note):
    async with nodes(tmp_path, x=[0], y=[]) as exchanges:
        with pytest.raises(Rejected, match="malformed"):
            await exchanges["y"]._local.endpoint.request(address_of("x"), TOPIC, note=note)


async def test_a_damaged_tensor_is_not_given_and_its_step_not_offered_any_more(tmp_path):
    async with nodes(tmp_path, x=[0, 1], y=[2]) as exchanges:
        file = next((tmp_path / "x").glob("stage-01/*/*.safetensors"))
        file.write_bytes(file.read_bytes()[:-4] + b"\7" * 4)
        with pytest.raises(NoLongerValid, match="no node gives b"):
            await load(exchanges["y"])
        await exchanges["y"].view.wait_for(lambda: exchanges["y"].view.saved_version == Version(0, ""))


async def test_other_dtypes_are_refused_with_both(tmp_path):
    async with nodes(tmp_path, x=[0], y=[]) as exchanges:
        for local in exchanges.values():
            with pytest.raises(UsageError, match=r"not hold a/value \(saved: .*float32.*expected: .*float64.*--dtype"):
                await load(local, {"a/value": np.zeros(3)})


GENERATION = Generation(
    4, [[StagePlace(Holder(name, f"virtual://{name}", 1), at, at + 1, 1) for at, name in enumerate("xy")]]
)
LAYERS = [{"a": torch.empty(3, device="meta")}, {"b": torch.empty(2, 2, device="meta")}]


async def test_the_average_comes_from_the_nodes_that_hold_it_and_what_is_there_is_not_asked_for_again(tmp_path):
    async with nodes(tmp_path, x=[], y=[], z=[]) as exchanges:
        exchanges["x"].keep(GENERATION, {"a": torch.arange(3.0)})
        average = {}
        with pytest.raises(NoLongerValid, match=r"no node gives b of step 4 \(y\)"):
            await exchanges["z"].fetch_average(GENERATION, LAYERS, average)
        assert [*average] == ["a"]
        exchanges["x"].keep(GENERATION, {})
        exchanges["y"].keep(GENERATION, {"b": torch.ones(2, 2)})
        await exchanges["z"].fetch_average(GENERATION, LAYERS, average)
        assert average["a"].numpy().tolist() == [0, 1, 2] and average["b"].numpy().tolist() == [[1, 1], [1, 1]]


async def test_a_tensor_of_another_size_or_of_other_clusters_is_not_taken_for_the_average(tmp_path):
    async with nodes(tmp_path, x=[], y=[], z=[]) as exchanges:
        exchanges["x"].keep(GENERATION, {"a": torch.arange(4.0)})
        with pytest.raises(NoLongerValid, match="no node gives a"):
            await exchanges["z"].fetch_average(GENERATION, LAYERS, {})
        exchanges["x"].keep(replace(GENERATION, number=3), {"a": torch.arange(3.0)})
        with pytest.raises(NoLongerValid, match="no node gives a"):
            await exchanges["z"].fetch_average(GENERATION, LAYERS, {})
