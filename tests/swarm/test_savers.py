"""Every stage is saved by a peer that can save it, whichever peers come, and whatever becomes of a directory."""

import pytest

from pipelined.aio.clock import run_virtual
from pipelined.state.stages.store import StoreError
from tests.swarm.virtual_swarm import MemoryStore, VirtualSwarm
from transports.rpc import Rejected


class FailingStore(MemoryStore):
    """A directory with a disk that can fail.

    Args:
        failing: the operations that fail from the beginning.
    """

    def __init__(self, *failing):
        super().__init__()
        self.failing = set(failing)

    def saved_stages(self):
        if "list" in self.failing:
            raise OSError(116, "Stale file handle")
        return super().saved_stages()

    def save(self, saved, state):
        if "save" in self.failing:
            raise StoreError("the disk is full")
        return super().save(saved, state)


def steps(store):
    return [saved.step for saved in MemoryStore.saved_stages(store)]


async def training(swarm, until, name, store):
    """A stage of one peer, that took so many steps."""
    swarm.peer(name, 0, store=store)
    swarm.trainer("t0", steps=4000)
    await stands(swarm, until)


async def stands(swarm, step):
    await swarm.until(lambda: swarm.heads[-1:] and swarm.heads[-1].step >= step)


def play(scene):
    """Run a scene in a swarm of one stage, saved at every second step."""

    async def play():
        swarm = VirtualSwarm(stages=1, batch=4)
        await scene(swarm)
        await swarm.close()

    run_virtual(play())


@pytest.mark.parametrize("theirs", [None, MemoryStore()])
def test_a_newcomer_does_not_take_over_the_saving(theirs):
    async def scene(swarm):
        store = MemoryStore()
        await training(swarm, 3, "p", store)
        swarm.peer("a", 0, store=theirs)
        await swarm.until(lambda: swarm.peers["a"].peer.replica)
        await stands(swarm, 20)
        assert steps(store) == list(range(2, steps(store)[-1] + 1, 2)) and steps(store)[-1] >= 18
        assert theirs is None or not steps(theirs)

    play(scene)


@pytest.mark.parametrize("failing", ["list", "save"])
def test_a_directory_that_fails_ends_no_peer_and_another_peer_saves_meanwhile(failing):
    async def scene(swarm):
        first, second = FailingStore(), MemoryStore()
        await training(swarm, 3, "a", first)
        swarm.peer("b", 0, store=second)
        await stands(swarm, 6)
        assert not steps(second)
        first.failing = {failing}
        await stands(swarm, 20)
        assert swarm.peers["a"].view.peers["a"].saves_every == 0
        saved = steps(second)
        assert saved and saved == list(range(saved[0], saved[-1] + 1, 2)) and saved[0] <= 12 and saved[-1] >= 18
        first.failing = set()
        await swarm.until(lambda: swarm.peers["a"].view.peers["a"].saves_every)
        await stands(swarm, swarm.heads[-1].step + 4)
        assert steps(first)[-1] >= swarm.heads[-1].step - 3, "it did not save again"

    play(scene)


def test_saving_resumes_when_the_only_directory_works_again():
    async def scene(swarm):
        store = FailingStore("save")
        await training(swarm, 7, "a", store)
        assert not steps(store)
        store.failing = set()
        await stands(swarm, 10)
        assert steps(store)

    play(scene)


def guard(endpoint, topics, admit):
    """Have an endpoint await `admit()` before it serves a request of these topics."""
    plain = endpoint.handle

    def guarded(handler):
        async def respond(request):
            await admit()
            return await handler(request)

        return respond

    endpoint.handle = lambda topic, handler, *limits: plain(
        topic, guarded(handler) if topic in topics else handler, *limits
    )


def leave_out(swarm, name, alone):
    """Leave a peer out of the steps after these: it computes nothing, and is not prepared for their sums."""

    async def refuse():
        if swarm.heads[-1].step in alone:
            raise Rejected("in a round")

    guard(swarm.endpoints[name], ("forward", "backward", "prepare"), refuse)


def test_a_saver_that_catches_up_by_several_steps_saves_each_that_is_due():
    """Its donor gives it the totals of two steps at once, of which the first is due."""

    async def scene(swarm):
        store = MemoryStore()

        async def wait_for_both():
            if swarm.heads[-1].step == 4:
                await stands(swarm, 5)

        swarm.peer("p", 0, store=store)
        leave_out(swarm, "p", [3, 4])
        swarm.peer("q", 0)
        guard(swarm.endpoints["q"], ("totals",), wait_for_both)
        swarm.trainer("t0", steps=4000)
        await stands(swarm, 10)
        assert steps(store)[:4] == [2, 4, 6, 8]

    play(scene)


def test_another_peer_saves_a_step_without_the_saver():
    """The saver fetches a later state, as its donor does not keep the total of the step."""

    async def scene(swarm):
        first, second = MemoryStore(), MemoryStore()

        async def refuse():
            raise Rejected("not kept")

        swarm.peer("p", 0, store=first)
        leave_out(swarm, "p", [11, 12])
        swarm.trainer("t0", steps=4000)
        await stands(swarm, 2)
        swarm.peer("q", 0, store=second)
        guard(swarm.endpoints["q"], ("totals",), refuse)
        await stands(swarm, 20)
        assert 12 not in steps(first)
        assert sorted({*steps(first), *steps(second)})[:9] == [*range(2, 20, 2)]

    play(scene)
