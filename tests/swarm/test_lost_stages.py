"""Stages that lose every peer, one, many or all: training continues from what was saved, and equals one process."""

import pytest

from pipelined.aio.clock import run_virtual
from pipelined.state.stages.versions import common_step
from pipelined.swarm.records.steps import LOST, LostStages
from tests.swarm.virtual_swarm import MemoryStore, VirtualSwarm
from tests.virtual_time import virtual_seconds


def start(swarm, stores, generation, **trainer):
    """Two stages, two peers each, and a trainer."""
    for at, store in enumerate(stores):
        swarm.peer(f"p{at}.{generation}", stage=at % 2, store=store)
    swarm.trainer(f"t.{generation}", **trainer)


def steps(swarm):
    return [head.step for head in swarm.heads]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("last", [4, 5])
def test_everything_is_lost_with_the_directory(shared, last):
    """Also where the last step was not saved, and where each machine finds only what it saved itself."""

    async def train():
        stores = [MemoryStore()] * 4 if shared else [MemoryStore() for _ in range(4)]
        former = VirtualSwarm(stages=2)
        start(former, stores, 0, steps=100)
        await former.until(lambda: former.heads[-1:] and former.heads[-1].step == last)
        await former.close()
        saved = common_step(saved for store in stores for saved in store.saved_stages())
        assert saved.step in (2, 4)
        swarm = VirtualSwarm(stages=2, seed=1)
        start(swarm, stores, 1, steps=8, resume=True)
        await swarm.finish(within=30)
        assert steps(swarm) == list(range(saved.step, 9)), "it did not go on from there"
        assert swarm.heads[0].version == saved.version
        await swarm.close()

    run_virtual(train())


def test_a_stage_that_is_lost_takes_all_back_to_what_all_had_saved():
    async def train():
        swarm, store = VirtualSwarm(stages=2), MemoryStore()
        start(swarm, [store] * 4, 0, steps=9)
        await swarm.until(lambda: swarm.heads[-1:] and swarm.heads[-1].step == 3)
        swarm.kill("p1.0")
        swarm.kill("p3.0")
        swarm.peer("late", stage=1, store=store)
        await swarm.finish(within=30)
        assert steps(swarm) == [0, 1, 2, 3, 2, 3, 4, 5, 6, 7, 8, 9]
        assert swarm.heads[4].lineage == swarm.heads[2].lineage
        await swarm.close()

    run_virtual(train())


@pytest.mark.parametrize("shared", [True, False])
def test_where_the_last_save_of_a_lost_stage_is_damaged_all_go_back_to_the_one_before(shared):
    async def train():
        swarm, stores = VirtualSwarm(stages=2), [MemoryStore() for _ in range(2)]
        first, second = stores[:1] * 2 if shared else stores
        start(swarm, [first, second] * 2, 0, steps=9)
        await swarm.until(lambda: swarm.heads[-1:] and swarm.heads[-1].step == 5)
        swarm.kill("p1.0")
        swarm.kill("p3.0")
        second.damaged |= {saved for saved in second.saved_stages() if saved[:2] == (4, 1)}
        swarm.peer("late", stage=1, store=second)
        await swarm.finish(within=30)
        assert steps(swarm) == [*range(6), 4, *range(2, 10)]
        assert [each[:2] for each in second.damaged] == [(4, 1)]
        await swarm.close()

    run_virtual(train())


def test_a_stage_that_is_lost_where_it_was_saved_goes_on_from_there():
    async def train():
        swarm, store = VirtualSwarm(stages=2), MemoryStore()
        start(swarm, [store] * 4, 0, steps=6)
        await swarm.until(lambda: swarm.heads[-1:] and swarm.heads[-1].step == 2 and len(store.saved_stages()) == 2)
        swarm.kill("p1.0")
        swarm.kill("p3.0")
        swarm.peer("late", stage=1, store=store)
        await swarm.finish(within=30)
        assert steps(swarm) == list(range(7)), "it went back, though it need not"
        await swarm.close()

    run_virtual(train())


def test_what_another_run_saved_is_gone_back_to_only_where_one_asks_for_it():
    async def train():
        store = MemoryStore()
        former = VirtualSwarm(stages=2)
        start(former, [store] * 4, 0, steps=4)
        await former.finish(within=20)
        await former.close()
        swarm = VirtualSwarm(stages=2, batch=4, seed=1)
        start(swarm, [store] * 4, 1, steps=3)
        await swarm.until(lambda: swarm.heads[-1:] and swarm.heads[-1].step == 1)
        swarm.kill("p0.1")
        swarm.kill("p2.1")
        swarm.peer("late", stage=0, store=store)
        await virtual_seconds(20.0)
        assert steps(swarm) == [0, 1], "it took up what it had not seen itself"
        await swarm.close()

    run_virtual(train())


def test_a_swarm_that_is_to_go_on_waits_for_what_was_saved():
    async def train():
        store = MemoryStore()
        former = VirtualSwarm(stages=2)
        start(former, [store] * 4, 0, steps=2)
        await former.finish(within=20)
        await former.until(lambda: len(store.saved_stages()) == 2)
        await former.close()
        swarm = VirtualSwarm(stages=2, seed=1)
        swarm.trainer("t", steps=4, resume=True)
        swarm.peer("empty", stage=0, store=MemoryStore())
        await virtual_seconds(10.0)
        assert not swarm.heads
        for stage in (0, 1):
            swarm.peer(f"p{stage}", stage, store=store)
        await swarm.finish(within=20)
        assert steps(swarm) == [2, 3, 4]
        await swarm.close()

    run_virtual(train())


def test_a_lost_stage_is_named_again_where_another_write_followed_the_first_at_once():
    """The leader sees the later of two changes that come together, and never the one that it waited for."""

    async def train():
        swarm = VirtualSwarm(stages=2)
        swarm.peer("a", 0)
        swarm.peer("b", 1)
        swarm.trainer("t0", steps=100)
        await swarm.until(lambda: swarm.heads[-1:] and swarm.heads[-1].step == 2)
        view, written = swarm.trainers["t0"].view, []
        plain = view.directory.transact

        async def transact(expect, put, *rest, **named):
            revision = await plain(expect, put, *rest, **named)
            if LOST in put:
                written.append(LostStages.unpack(put[LOST]).stages)
                if len(written) == 1:
                    later = await swarm.directory.transact({}, {LOST: LostStages([]).pack()})
                    await view.wait_for(lambda: view.lost_revision == later)
            return revision

        view.directory.transact = transact
        swarm.kill("b")
        await swarm.until(lambda: len(written) == 2)
        assert written == [[1], [1]]
        await swarm.close()

    run_virtual(train())
