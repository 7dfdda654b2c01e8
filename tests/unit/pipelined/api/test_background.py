"""A call of the user's thread: every rank of the process makes it, and the caller gets the first rank's result."""

import pytest

from pipelined.api.background import _Call
from pipelined.errors import AgreedError


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
