"""What new backups and late clusters get from other nodes arrives whole, although a tensor exceeds a message."""

import asyncio

import numpy as np
import pytest
import torch

from pipelined.actors.actor import Actor
from pipelined.membership.view import NoLongerValid
from pipelined.ravnest.averaging.refusals import Senders, SliceRefused
from pipelined.ravnest.averaging.state_transfer import MomentsTransfer, share_state
from pipelined.ravnest.records.generation import Continuation, Generation
from pipelined.ravnest.records.places import Holder, StagePlace
from pipelined.state.stages.chunks import describe
from pipelined.state.tensor_specs import specs_of
from tests.ravnest.story import at_once
from transports import Block, TransportError
from transports.rpc.virtual.network import VirtualNetwork
from transports.rpc.world import RankHolder, Worlds

pytestmark = pytest.mark.virtual
MAX_BYTES, CHUNK = 4096, 3000
NUMBERS = 5000
"""Of a tensor, so many that its bytes exceed the largest message."""


class Stage:
    """The state of one stage, and what it is to be."""

    def __init__(self, state, *names):
        self.state = state
        target = state_of(*names) if names else state
        self.specs = specs_of(target)
        self.tensors = {key.removesuffix("/value"): each for key, each in target.items() if key.endswith("/value")}

    async def copy_state(self, averages=True):
        return {key: tensor.clone() for key, tensor in self.state.items() if averages or not key.endswith("/value")}

    async def restore(self, state):
        self.state = {**self.state, **state}


@pytest.fixture
def small_messages(monkeypatch):
    monkeypatch.setattr("pipelined.ravnest.averaging.state_transfer.CHUNK", CHUNK)


async def opened(ranks, backups=()):
    """Each party's end of a world, the backups' last."""
    asyncio.get_running_loop().run_in_executor = at_once
    network, addresses = VirtualNetwork(delay=1e-3), [f"virtual://{name}" for name in ranks]
    worlds = [Worlds(network.endpoint(name), MAX_BYTES) for name in [*ranks, *backups]]
    others = [f"virtual://{name}" for name in backups]
    return await asyncio.gather(*(each.open("w", addresses, others) for each in worlds))


def state_of(*names):
    """Values, which rounds average, and what they do not."""
    fields = {"value": torch.float32, "exp_avg": torch.bfloat16, "step": torch.int64}
    drawn = {f"{name}/{field}": torch.randn(NUMBERS).to(dtype) for name in names for field, dtype in fields.items()}
    return {**drawn, **{f"{name}/updates": torch.tensor(7) for name in names}}


async def test_a_new_backup_gets_a_state_of_which_one_tensor_exceeds_the_largest_message(small_messages):
    first, second = await opened("a", "b")
    had, gets = state_of("x", "y"), Stage({}, "x", "y")
    async with Actor(first) as one, Actor(second) as other:
        giving = share_state(RankHolder(first), one, Stage(had), True)
        sending, _ = await asyncio.gather(giving, share_state(RankHolder(second), other, gets, False))
        await sending
    assert describe(gets.state).root == describe(had).root


async def test_a_late_cluster_gets_all_but_the_averages_of_what_it_shares_with_each_node(small_messages):
    """The first cluster holds x and y on a node each, the late one both on one node."""
    ends = await opened("abc")
    rows = [
        [StagePlace(Holder("a", "a", 1), 0, 1, 1), StagePlace(Holder("b", "b", 1), 1, 2, 1)],
        [StagePlace(Holder("c", "c", 1), 0, 2, 1)],
    ]
    generation = Generation(2, rows, continuation=Continuation(1, 0, 1, [], [[]]))
    stages = [Stage(state_of("x")), Stage(state_of("y")), Stage({}, "x", "y")]
    layers = [{"x": None}, {"y": None}]
    moments = [MomentsTransfer(rank, generation, layers, stage) for rank, stage in enumerate(stages)]
    await asyncio.gather(*(each.copy() for each in moments))
    await asyncio.gather(
        *(each.exchange(end, Senders(generation, [], end.rank)) for end, each in zip(ends, moments, strict=True))
    )
    await asyncio.gather(*(each.load() for each in moments))
    had = {key: tensor for stage in stages[:2] for key, tensor in stage.state.items() if "value" not in key}
    assert describe(stages[2].state).root == describe(had).root


async def test_a_state_that_does_not_match_its_manifest_is_not_taken():
    first, second = await opened("a", "b")
    holder, bad = RankHolder(first), Block.of(np.zeros(3, np.uint8))
    async with Actor(second) as actor:
        taking = asyncio.ensure_future(share_state(RankHolder(second), actor, Stage({}), False))
        await holder.send(("state", "held"), note=True)
        await holder.send(("state", "manifest"), bad)
        with pytest.raises(TransportError, match="no manifest"):
            await taking


async def test_a_state_of_another_layout_is_refused_before_memory_is_taken_for_it(monkeypatch):
    monkeypatch.setattr("pipelined.ravnest.averaging.state_transfer.Download", None)
    first, second = await opened("a", "b")
    holder, manifest = RankHolder(first), describe(state_of("x", "z")).pack()
    async with Actor(second) as actor:
        taking = asyncio.ensure_future(share_state(RankHolder(second), actor, Stage({}, "x"), False))
        await holder.send(("state", "held"), note=True)
        await holder.send(("state", "manifest"), Block.of(np.frombuffer(manifest, np.uint8)))
        with pytest.raises(TransportError, match=r"another layout than this stage.*z/exp_avg"):
            await taking


async def test_a_late_node_refuses_the_state_of_another_layout_by_name(small_messages):
    ends = await opened("ab")
    rows = [[StagePlace(Holder("a", "a", 1), 0, 1, 1)], [StagePlace(Holder("b", "b", 1), 0, 1, 1)]]
    generation = Generation(2, rows, continuation=Continuation(1, 0, 1, [], [[]]))
    stages = [Stage(state_of("x")), Stage({}, "x")]
    del stages[0].state["x/step"]
    moments = [MomentsTransfer(rank, generation, [{"x": None}], stage) for rank, stage in enumerate(stages)]
    await moments[0].copy()
    sending = asyncio.ensure_future(moments[0].exchange(ends[0], Senders(generation, [], 0)))
    with pytest.raises(SliceRefused, match=r"a \(cluster 0\): its optimizer's state cannot be taken: it has another"):
        await moments[1].exchange(ends[1], Senders(generation, [], 1))
    sending.cancel()


async def test_a_place_of_which_no_node_has_the_state_is_lost():
    first, _ = await opened("a", "b")
    async with Actor(first) as actor:
        with pytest.raises(NoLongerValid, match="no node has the state"):
            await share_state(None, actor, Stage({}), False)
