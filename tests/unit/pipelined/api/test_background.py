"""A call of the user's thread: every rank of the process makes it, and the caller gets the first rank's result."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from pipelined.api import background
from pipelined.api.background import BackgroundRanks, _Call
from pipelined.errors import AgreedError, JobFailed


async def returned(rank):
    return f"of {rank}"


async def test_the_result_is_that_of_the_first_rank_once_all_have_made_the_call():
    call = _Call("step", returned, ranks=3)
    await call.execute(1, False)
    await call.execute(0, True)
    assert call.pending_ranks == 1 and not call.future.done()
    await call.execute(2, False)
    assert call.future.result(0) == "of 0"


async def test_an_error_of_all_ranks_is_raised_once():
    async def refused(rank):
        raise AgreedError("no such path")

    call = _Call("save", refused, ranks=2)
    for rank in range(2):
        await call.execute(rank, not rank)
    with pytest.raises(AgreedError, match="no such path"):
        call.future.result(0)


async def test_a_call_cannot_be_taken_back():
    call = _Call("step", returned, ranks=1)
    assert not call.future.cancel()
    await call.execute(0, True)
    assert call.future.result(0) == "of 0"


@pytest.fixture
def ranks(monkeypatch):
    """Ranks of a job that fails: the thread goes on from the close of its event loop once something was put."""
    loop_closed, was_put = threading.Event(), threading.Event()

    def run_or_raise(launch, world_size, program, *others):
        async def enter():
            program.__self__._enter(0)

        asyncio.run(enter())
        loop_closed.set()
        assert was_put.wait(10)
        raise JobFailed("rank 1 was lost")

    class Ranks(BackgroundRanks):
        def _put(self, item):
            assert loop_closed.wait(10)
            try:
                super()._put(item)
            finally:
                was_put.set()

    monkeypatch.setattr(background, "run_or_raise", run_or_raise)
    plan = SimpleNamespace(world_size=1, stages_of=None)
    made = Ranks(SimpleNamespace(world_size=1, rank=0), SimpleNamespace(plan=plan))
    yield made
    made.close()


def test_a_call_after_the_event_loop_has_closed_fails_as_the_job_does(ranks):
    with pytest.raises(JobFailed, match="rank 1 was lost"):
        ranks.call("step", returned).result(10)
    with pytest.raises(JobFailed, match="the job has ended: rank 1 was lost"):
        ranks.call("step", returned)


def test_ranks_close_also_after_their_event_loop_has_closed(ranks):
    ranks.close()
    with pytest.raises(JobFailed, match="the trainer is closed"):
        ranks.call("step", returned)
