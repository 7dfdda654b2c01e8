"""Arrays in memory that all ranks map: like any other, but that long sums leave them where they are."""

import asyncio

import numpy as np
import pytest

from collectives import Group, MeasuredTimes, Mismatch, all_reduce, allocate
from collectives.algorithms.parts.shared_memory_algorithm import IN_PLACE_BYTES
from tests.conformance.worlds import local_world

LENGTH = IN_PLACE_BYTES // 4 + 1001


def on_groups(size, work, shares=True):
    """Run work(group) on every rank; what each gave or raised."""
    ends = local_world(size, shared_memory=shares)

    async def main():
        groups = [Group(end, range(size), 0, patience=60) for end in ends]
        return await asyncio.wait_for(asyncio.gather(*map(work, groups), return_exceptions=True), 30)

    return asyncio.run(main())


def normal(rank, length=LENGTH):
    return np.random.default_rng(rank).standard_normal(length).astype("float32")


@pytest.mark.parametrize("shares", [True, False])
def test_it_returns_zeros_of_the_given_length_and_dtype_that_sum_like_other_arrays(shares):
    async def work(group):
        array = await allocate(group, LENGTH, "int32")
        assert array.shape == (LENGTH,) and array.dtype == "int32" and not array.any()
        array += group.rank + 1
        await all_reduce(group, array)
        return array

    for array in on_groups(3, work, shares):
        assert (array == 6).all()


@pytest.mark.parametrize("op", ["sum", "mean", "max"])
@pytest.mark.parametrize("size", [2, 3, 4, 7])
@pytest.mark.parametrize("algorithm", ["shared", "auto"])
def test_it_is_reduced_in_the_order_of_ranks_to_the_last_bit_without_a_window(size, op, algorithm):
    exact = normal(0)
    for rank in range(1, size):
        exact = np.maximum(exact, normal(rank)) if op == "max" else exact + normal(rank)
    if op == "mean":
        exact /= np.float32(size)

    async def work(group):
        array = await allocate(group, LENGTH)
        array[:] = normal(group.rank)
        await all_reduce(group, array, op, algorithm)
        return array.tobytes(), (await group.shared.open()).epoch

    assert on_groups(size, work) == [(exact.tobytes(), 2)] * size


def test_parts_of_it_and_short_arrays_follow_one_another():
    async def work(group):
        array = await allocate(group, 2 * LENGTH)
        second = await allocate(group, LENGTH)
        for part in (array[1000 : 1000 + LENGTH], array[:7], second, array[LENGTH:], array):
            part[:] = group.rank + 1
            await all_reduce(group, part)
            assert (part == 6).all()

    assert on_groups(3, work) == [None] * 3


def test_half_width_floats_are_viewed_by_torch():
    torch = pytest.importorskip("torch")

    async def work(group):
        array = torch.from_numpy(await allocate(group, 2 * LENGTH, "uint8")).view(torch.bfloat16)
        array.fill_(group.rank + 1)
        for accumulate in (None, "float32"):
            await all_reduce(group, array, "mean", accumulate=accumulate)
        return bool((array == 1.5).all())

    assert on_groups(2, work) == [True] * 2


def test_measured_times_of_ordinary_arrays_are_not_used():
    async def work(group):
        array = await allocate(group, LENGTH)
        group.measured = MeasuredTimes({"ring": ((1024, 1.0),)})
        await all_reduce(group, array)
        return (await group.shared.open()).epoch

    assert on_groups(2, work) == [2] * 2


@pytest.mark.parametrize("other", ["another part", "another array", "ordinary memory"])
def test_a_mismatch_names_both_parts_of_an_array(other):
    async def work(group):
        arrays = [await allocate(group, 2 * LENGTH) for _ in range(2)]
        array = arrays[0][:LENGTH]
        if group.rank == 1:
            parts = {"another part": arrays[0][LENGTH:], "another array": arrays[1][:LENGTH]}
            array = parts.get(other, np.zeros(LENGTH, "float32"))
        await all_reduce(group, array)

    errors = on_groups(3, work)
    assert all(isinstance(error, Mismatch) for error in errors)
    assert "array 0 at 0" in str(errors[1]) and "rank 1" in str(errors[0])


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("lengths", [(LENGTH, LENGTH + 1), (77, 0)])
def test_a_mismatch_names_both_lengths(lengths, shares):
    async def work(group):
        await allocate(group, lengths[group.rank])

    for error in on_groups(2, work, shares):
        assert isinstance(error, Mismatch) and all(str(length) in str(error) for length in lengths)


@pytest.mark.parametrize(
    ("length", "dtype", "says"),
    [
        (-1, "float32", r"no length of an array \(length: -1, at most: \d+ of float32\)"),
        (2.5, "float32", r"length: 2.5"),
        ("4", "float32", r"length: '4'"),
        (1 << 61, "float32", "at most: 2305843009213693951 of float32"),
        (4, "O", "dtype object has no wire form"),
        (4, "f2,O", "has no wire form"),
        (4, ">f4", "another machine's byte order"),
        (4, "float33", r"no dtype of numpy \(got: 'float33'\)"),
    ],
)
def test_what_makes_no_array_is_refused_before_anything_is_sent(length, dtype, says):
    async def work(group):
        with pytest.raises(ValueError, match=says):
            await allocate(group, length, dtype)
        await all_reduce(group, await allocate(group, 0))

    assert on_groups(2, work) == [None] * 2
