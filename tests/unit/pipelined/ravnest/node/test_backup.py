"""What two nodes of a place do is fixed: their order, when differences are added, and where they stop."""

import asyncio
from dataclasses import replace

import pytest

from pipelined.actors.actor import Actor
from pipelined.programs.instructions import Instruction, Program
from pipelined.programs.proof.check import check
from pipelined.ravnest.cluster_place import ClusterPlace
from pipelined.ravnest.node.backup import CATCH_UP, PlaceReplica, fixed_order, fixed_turns
from pipelined.ravnest.records.generation import Generation
from pipelined.ravnest.records.places import Holder, StagePlace
from pipelined.ravnest.stage.orders import NodeOrder
from pipelined.schedules import Shape, find
from tests.virtual_time import virtual_seconds
from transports.rpc.virtual.network import VirtualNetwork
from transports.rpc.world import Worlds


def clusters_of(*alive):
    return Generation(
        1, [[StagePlace(Holder(f"n{at}", f"at {at}", 1), at, at + 1, most) for at, most in enumerate(alive)]]
    )


def test_a_stage_alternates_when_as_many_microbatches_are_alive_as_may_be():
    assert " ".join(fixed_order(clusters_of(3, 2), ClusterPlace(0, 1), 4)) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert " ".join(fixed_order(clusters_of(9), ClusterPlace(0, 0), 2)) == "F0 F1 B0 B1"


@pytest.mark.parametrize("alive", [(3, 2, 1), (7, 4, 1), (1, 1, 1), (2, 3, 4)])
def test_the_orders_of_all_stages_together_train_every_step(alive):
    generation, many, mb = clusters_of(*alive), 12, 2
    orders = [
        NodeOrder(fixed_order(generation, ClusterPlace(0, stage), many), {}).of_stage(stage)[0] for stage in range(3)
    ]
    knobs = {"ahead": ",".join(map(str, alive))}
    stage_map = find("async_1f1b").stage_map(replace(Shape(3, mb), knobs=knobs, steps=many // mb))
    check(Program(stage_map, tuple(orders)))
    assert all(isinstance(each, Instruction) for order in orders for each in order)


def test_a_difference_is_added_half_way_to_the_next_snapshot():
    assert fixed_turns([8, 16, 24], 8) == {1: 12, 2: 20, 3: 28}
    assert fixed_turns([0, 16, 24], 8) == {1: 16, 2: 20, 3: 28}, "an opening round's is added at the next snapshot"
    assert fixed_turns([], 8) == {}


def place_at(end, actor, microbatches, alive, room=0):
    return PlaceReplica(end, actor, NodeOrder((), {}), microbatches=microbatches, alive=alive, room=room)


async def two_holders():
    network = VirtualNetwork(delay=1e-3)
    ends = [Worlds(network.endpoint(name), 1 << 20) for name in "ab"]
    opened = await asyncio.gather(*(each.open("w", ["virtual://a"], ["virtual://b"]) for each in ends))
    return network, opened


@pytest.mark.virtual
async def test_neither_node_is_more_than_two_steps_ahead_unless_the_other_is_lost():
    network, (one, other) = await two_holders()
    async with Actor(one) as actor, Actor(other) as slow:
        first, second = (place_at(end, by, 2, 1) for end, by in [(one, actor), (other, slow)])
        for updates in (1, 2, 3):
            await first.keep_pace(updates)
        waits = asyncio.ensure_future(first.keep_pace(4))
        await virtual_seconds(1.0)
        assert not waits.done()
        await second.keep_pace(2)
        await waits
        waits = asyncio.ensure_future(first.keep_pace(6))
        await virtual_seconds(1.0)
        assert not waits.done() and not first.is_second and second.is_second
        network.kill("b")
        await waits
        await first.keep_pace(8)


@pytest.mark.virtual
async def test_a_new_backup_is_not_waited_for_while_it_gets_the_state_and_may_then_be_ever_fewer_steps_behind():
    _, (one, other) = await two_holders()
    async with Actor(one) as actor, Actor(other) as slow:
        ends = [(one, actor), (other, slow)]
        first, second = (place_at(end, by, 1, 1, 3 * CATCH_UP) for end, by in ends)
        first.copying = asyncio.get_running_loop().create_future()
        for step in range(1, 2 * CATCH_UP):
            await first.keep_pace(step)
        first.copying.set_result(None)
        await first.keep_pace(2 * CATCH_UP)
        waits = asyncio.ensure_future(first.keep_pace(2 * CATCH_UP + 1))
        await virtual_seconds(1.0)
        assert not waits.done()
        await second.keep_pace(1)
        await waits


@pytest.mark.virtual
@pytest.mark.parametrize(("room", "steps"), [(0, 2), (5, 2), (6, 3), (9, 4)])
async def test_a_place_waits_while_its_new_backup_has_no_room_for_the_inputs_of_one_more_step(room, steps):
    """Two microbatches a step; without a limit all steps of a transfer waited in the backup."""
    _, (one, other) = await two_holders()
    async with Actor(one) as actor, Actor(other) as slow:
        first, second = (place_at(end, by, 2, 1, room) for end, by in [(one, actor), (other, slow)])
        first.copying = asyncio.get_running_loop().create_future()
        for step in range(1, steps):
            await first.keep_pace(2 * step)
        waits = asyncio.ensure_future(first.keep_pace(2 * steps))
        await virtual_seconds(1.0)
        assert not waits.done()
        await second.keep_pace(2)
        await waits


@pytest.mark.virtual
async def test_both_stop_after_the_same_step_whatever_they_have_done_beyond_it():
    _, (one, other) = await two_holders()
    async with Actor(one) as actor:
        early, late = (place_at(end, actor, 2, 3) for end in (one, other))
        early.end_after(4)
        votes = [early.stops() for _ in range(5)]
        late_votes = [late.stops() for _ in range(3)]
        late.end_after(4)
        assert votes == late_votes + [late.stops() for _ in range(2)] == [False, False, False, True, True]
