"""What ranks publish in shared memory, on the loop and begun in a thread; a local world stands in for real memory."""

import asyncio
import weakref

import numpy as np
import pytest
import torch

from collectives import BrokenGroup, Group, Mismatch, Unsupported, all_reduce, publish, start_publishing
from collectives.group.workspace import RECENT, Workspace
from tests.conformance.worlds import local_world
from tests.unit.collectives.owned import owned

SHAPES = [(2, 3), (0, 3), (4,)]


def on_all(work, size=3, **options):
    async def main():
        groups = [Group(end, range(size), 2, **options) for end in local_world(size, shared_memory=True)]
        return await asyncio.gather(*map(work, groups))

    return asyncio.run(asyncio.wait_for(main(), 30))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.bool, np.dtype("float32")], ids=str)
def test_all_ranks_read_the_arrays_of_all_of_any_shapes_and_strides(dtype):
    def of(rank):
        if isinstance(dtype, np.dtype):
            return np.full(SHAPES[rank][::-1], rank + 1, dtype).T
        return torch.full(SHAPES[rank][::-1], rank + 1, dtype=dtype).permute(*range(len(SHAPES[rank]) - 1, -1, -1))

    async def work(group):
        for _ in range(3):  # both halves of the windows
            arrays = await publish(group, of(group.rank), SHAPES)
            assert all((array == of(rank)).all() and array.shape == SHAPES[rank] for rank, array in enumerate(arrays))
            assert {array.dtype for array in arrays} == {dtype}

    on_all(work)


def test_no_graph_grows_with_what_is_published():
    async def work(group):
        for _ in range(3):
            arrays = await publish(group, torch.ones(4, requires_grad=True), [(4,)] * 3)
            assert not any(array.requires_grad for array in arrays)

    on_all(work)


def test_what_does_not_fit_into_a_half_of_a_window_is_refused_on_all_ranks():
    """Of a window of 768 bytes and two fingerprints, halves of 3 ranks have 6 slots of 64 bytes."""

    async def work(group):
        mine = np.zeros(48 if group.rank else 49)
        return await publish(group, mine, [(49,), (48,), (48,)]), await publish(group, np.zeros(48), [(48,)] * 3)

    assert [(one is None, other is None) for one, other in on_all(work, window=768 + 128)] == [(True, False)] * 3


@pytest.mark.parametrize("size", [2, 3])
def test_what_others_still_read_of_a_sum_is_not_overwritten(size):
    """The first rank leaves the sum and publishes before the others have copied its part of the sum out."""

    async def work(group):
        array = np.full(1000, group.rank + 1.0)
        await all_reduce(group, array, "sum", "shared")
        await publish(group, np.zeros(48), [(48,)] * size)
        assert (array == sum(range(1, size + 1))).all()

    on_all(work, size, window=512 * size + 128)


def test_ranks_that_publish_other_shapes_get_a_mismatch():
    async def main():
        ends = local_world(2, shared_memory=True)
        groups = [Group(end, range(2), 2) for end in ends]
        calls = [publish(group, np.zeros(3 + group.rank), [(3,), (3 + group.rank,)]) for group in groups]
        outcomes = await asyncio.gather(*map(owned, ends, calls), return_exceptions=True)
        assert any(isinstance(each, Mismatch) and "publish" in str(each) for each in outcomes)
        with pytest.raises(BrokenGroup):
            await publish(groups[0], np.zeros(3), [(3,), (3,)])

    asyncio.run(asyncio.wait_for(main(), 30))


@pytest.mark.parametrize(
    ("mine", "shapes", "fact"),
    [((1,), [(4,)] * 2, r"array: \(1,\), shapes\[1\]: \(4,\)"), ((4,), [(4,)], "shapes: 1, ranks: 2")],
)
async def test_an_array_that_is_not_as_declared_is_refused_before_the_call_and_breaks_no_group(mine, shapes, fact):
    one, other = await opened(2)
    with pytest.raises(ValueError, match=fact):
        await publish(other, np.ones(mine), shapes)
    with pytest.raises(ValueError, match=fact):
        start_publishing(other, torch.ones(mine), shapes)
    results = await asyncio.gather(*(publish(group, np.ones(4), [(4,)] * 2) for group in (one, other)))
    assert all(array.tolist() == [1] * 4 for arrays in results for array in arrays)


def test_without_shared_memory_it_is_unsupported():
    async def main():
        await publish(Group(local_world(2)[0], [0], 1), np.zeros(1), [(1,)])

    with pytest.raises(Unsupported, match="share no memory"):
        asyncio.run(main())


async def opened(size):
    """Groups whose memory may be used in threads, as that of MPI."""
    groups = [Group(end, range(size), 2) for end in local_world(size, shared_memory=True)]
    for memory in await asyncio.gather(*(group.shared.open() for group in groups)):
        memory.is_threadsafe = True
    return groups


async def test_the_last_rank_has_the_arrays_at_once_and_the_others_when_the_loop_has_waited():
    groups = await opened(3)
    for number in range(3):
        mine = [torch.full((2,), 10.0 * number + rank) for rank in range(3)]
        begun = [start_publishing(group, one, [(2,)] * 3) for group, one in zip(groups, mine, strict=True)]
        assert [each.arrays is None for each in begun] == [True, True, False]
        results = [begun[2].arrays, *await asyncio.gather(*(each.finish() for each in begun[:2]))]
        assert all(torch.equal(torch.stack([*arrays]), torch.stack(mine)) for arrays in results)
    await asyncio.gather(*(publish(group, mine[0], [(2,)] * 3) for group in groups))


async def test_a_rank_may_begin_in_a_thread_what_another_does_on_the_loop():
    one, other = await opened(2)
    begun = start_publishing(one, np.ones(2), [(2,), (3,)])
    published, finished = await asyncio.gather(publish(other, np.zeros(3), [(2,), (3,)]), begun.finish())
    assert [each.tolist() for each in published] == [each.tolist() for each in finished] == [[1, 1], [0, 0, 0]]


async def test_what_is_begun_compares_the_calls_of_all_ranks():
    one, other = await opened(2)
    begun = start_publishing(one, np.ones(2), [(2,), (2,)])
    with pytest.raises(Mismatch, match="publish"):
        start_publishing(other, np.ones(3), [(3,), (3,)])
    with pytest.raises(Mismatch, match="publish"):
        await begun.finish()
    for group in one, other:
        with pytest.raises(BrokenGroup):
            start_publishing(group, np.ones(2), [(2,), (2,)])


async def test_nothing_is_begun_in_a_thread_where_the_loop_must_do_it():
    closed, _ = [Group(end, range(2), 3) for end in local_world(2, shared_memory=True)]
    assert start_publishing(closed, np.ones(2), [(2,), (2,)]) is None  # the memory is not open
    one, _ = await opened(2)
    assert start_publishing(one, np.ones(1 << 20), [(1 << 20,), (2,)]) is None  # too long
    one.shared.memory.is_threadsafe = False
    assert start_publishing(one, np.ones(2), [(2,), (2,)]) is None


def test_shapes_that_never_come_again_are_not_kept():
    """Texts of any length have a shape of their own, each with views of every rank's window."""

    async def work(group):
        references = []
        for length in range(RECENT + 50):
            arrays = await publish(group, np.full(length, group.rank), [(length,)] * 2)
            assert [each.tolist() for each in arrays] == [[0] * length, [1] * length]
            references.append(weakref.ref(arrays[1 - group.rank]))
            del arrays
        assert sum(each() is not None for each in references) == RECENT

    on_all(work, 2)


def test_a_request_that_comes_again_and_again_is_made_once():
    """A layer's shapes come in each step, however many others come between."""
    workspace, names = Workspace(1, ahead=True), []
    for other in range(3 * RECENT):
        workspace.cached_recent("layer", lambda: names.append("layer") or object())
        workspace.cached_recent(other, object)
    assert names == ["layer"]


async def test_what_is_begun_and_abandoned_breaks_the_group():
    """Else its next call would wait for ever for the lock."""
    one, _ = await opened(2)
    start_publishing(one, np.ones(2), [(2,), (2,)]).abandon(asyncio.CancelledError("given up"))
    with pytest.raises(BrokenGroup, match="given up"):
        await publish(one, np.ones(2), [(2,), (2,)])
