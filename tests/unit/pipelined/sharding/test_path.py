"""Paths: the moves of the paper's table; any two layouts: values, elements as predicted, and no detour is cheaper."""

import asyncio
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import Links
from pipelined.errors import UsageError
from pipelined.sharding import Mesh, MeshGroups, Shards, path, path_between
from pipelined.sharding.path import lower_bound_elements
from tests.conformance.worlds import local_world, tcp_world
from tests.launching import launched
from tests.unit.pipelined.sharding.worlds import layouts, meshes, pieces_of, run_on_all, shapes, share, whole
from transports.local import world

N, P = 64 * 96, 4
TABLE = [
    ("S0:a", "S1:a", ["all_to_all"], (P - 1) / P * N / P),
    ("S0:a", "B", ["all_gather"], (P - 1) / P * N),
    ("P:a", "S0:a", ["reduce_scatter"], (P - 1) / P * N),
    ("Pmean:a", "S1:a", ["reduce_scatter"], (P - 1) / P * N),
    ("P:a", "B", ["all_reduce"], 2 * (P - 1) / P * N),
    ("Pmax:a", "B", ["all_reduce"], 2 * (P - 1) / P * N),
    ("B", "S1:a", ["slice"], 0),
    ("B", "P:a", ["mask"], 0),
    ("S0:a", "P:a", ["pad"], 0),
    ("S0:a", "S0:a", [], 0),
]


@pytest.mark.parametrize(("source", "target", "names", "elements"), TABLE)
def test_a_move_over_one_axis_takes_what_the_table_says(source, target, names, elements):
    way = path(Mesh("a=4"), (64, 96), source, target)
    assert [move.name for move in way.steps] == names
    assert [way.elements(rank) for rank in range(4)] == [elements] * 4


@pytest.mark.parametrize(
    ("source", "target", "replicated", "names"),
    [
        ("S0:a", "S1:a", "", ["all_to_all"]),
        ("S0:a", "B", "", ["reduce_scatter"]),
        ("S0:a", "B", "a", ["slice"]),
        ("P:a", "S0:a", "", ["all_gather"]),
        ("P:a", "B", "", ["all_reduce"]),
        ("P:a", "B", "a", []),
        ("B", "S0:a", "", ["pad"]),
        ("B", "S0:a", "a", ["all_gather"]),
        ("B", "P:a", "", ["mask"]),
    ],
)
def test_the_way_back_is_the_tables(source, target, replicated, names):
    way = path(Mesh("a=4"), (64, 96), source, target, replicated=replicated.split())
    assert [move.name for move in way.backward.steps] == names


def test_a_matmul_of_two_by_two_by_two_takes_1792_elements():
    """m 64, k 96, n 128: forward an all-gather of the input's columns and a reduce-scatter of the output's."""
    mesh = Mesh("r=2 c=2 b=2")
    gathered = path(mesh, (64, 96), "S0:r S1:c S1:b", "S0:r S1:c")
    scattered = path(mesh, (64, 128), "S0:r S1/2:b P:c", "S0:r S1:c S1:b")
    update = path(mesh, (96, 128), "S0:c S1/2:b P:r", "S0:c S1/2:b")
    assert [p.elements(r) for p in (gathered, scattered, update) for r in range(8)] == [768] * 8 + [1024] * 8 + [
        3072
    ] * 8
    assert [len(p.steps) for p in (gathered, scattered, update)] == [1, 1, 1]
    back = gathered.backward, scattered.backward
    assert [sum(p.elements(r) for p in back) for r in range(8)] == [768 + 1024] * 8


@pytest.mark.parametrize(("rows", "then", "ratio"), [(2, 4, 2), (4, 2, 2), (2, 8, 4), (8, 2, 4)])
def test_the_edge_between_two_matmuls_is_one_all_to_all_of_the_local_shard(rows, then, ratio):
    """(c - 1)/c of the shard, where c is how much larger one number of row shards is than the other."""
    sizes = {"x": min(rows, then), "y": ratio, "z": 16 // max(rows, then)}
    mesh = Mesh(" ".join(f"{axis}={size}" for axis, size in sizes.items()))
    wide, narrow = "S0:x S0:y S1:z", "S0:x S1:z S1:y"
    source, target = (narrow, wide) if rows < then else (wide, narrow)
    way = path(mesh, (64, 64), source, target)
    assert [move.name for move in way.steps] == ["all_to_all"]
    assert max(way.elements(rank) for rank in range(16)) == (ratio - 1) / ratio * 64 * 64 / 16


def test_a_split_over_one_axis_becomes_one_over_another_without_gathering_it():
    way = path(Mesh("a=4 b=4"), (64, 64), "S0:a", "S0:b")
    assert [move.name for move in way.steps] == ["slice", "all_to_all", "all_gather"]
    gathering = path(Mesh("a=4 b=4"), (64, 64), "S0:a", "B")
    assert 3 * sum(move.all_elements for move in way.steps) < sum(move.all_elements for move in gathering.steps)


def test_listing_2_of_the_paper_takes_one_reduce_scatter():
    """(P:4, S1:8) becomes (S1:32)."""
    way = path(Mesh("x=8 y=4"), (16, 64), "S1:x P:y", "S1:x S1:y")
    assert [move.name for move in way.steps] == ["reduce_scatter"]
    assert way.elements(0) == 3 / 4 * 16 * 64 / 8


def test_a_sum_that_is_repeated_is_added_up_in_shares():
    """Each of 3 copies reduces a third of the tensor, and then they gather: less than each reducing it all."""
    way = path(Mesh("a=4 b=3"), (12, 12), "P:a", "B")
    assert [move.name for move in way.steps] == ["slice", "all_reduce", "all_gather"]
    assert way.elements(0) == 2 * 3 / 4 * 48 + 2 / 3 * 144


def test_seconds_are_those_of_the_busiest_rank_in_each_move():
    links = Links(alpha=1.0, beta=1e-3, gamma=1e-4)
    mesh = Mesh("a=4")
    seconds = {
        kind: path(mesh, (8, 8), *kind).seconds(links, 4) for kind in [("S0:a", "B"), ("P:a", "S0:a"), ("P:a", "B")]
    }
    assert seconds == pytest.approx({
        ("S0:a", "B"): 3 + 192e-3,
        ("P:a", "S0:a"): 3 + 192e-3 + 192e-4,
        ("P:a", "B"): 6 + 2 * 192e-3 + 192e-4,
    })  # fmt: skip
    assert path(mesh, (8, 8), "S0:a", "S1:a").seconds(links, 4) == pytest.approx(3 + 48e-3)


def test_where_messages_cost_most_there_are_few():
    """Elements want three moves (all ranks share the sum), messages one."""
    mesh = Mesh("a=4 b=3")
    few = path(mesh, (12, 12), "P:a", "B", links=Links(alpha=1.0, beta=1e-9))
    assert [move.name for move in few.steps] == ["all_reduce"]


@settings(max_examples=40)
@given(data=st.data())
def test_any_path_gives_the_values_and_sends_what_was_predicted(data):
    mesh, shape = data.draw(meshes()), data.draw(shapes)
    source, target = (
        data.draw(layouts(mesh, len(shape), data.draw(st.sampled_from([("", "mean"), ("max",)])))) for _ in "12"
    )
    random = np.random.default_rng(0)
    tensor = random.integers(-9, 9, shape).astype(float)
    way = path(mesh, shape, source, target)
    pieces = pieces_of(way.source, tensor, random)
    arrays, elements = run_on_all(mesh, lambda groups: way.run(groups, pieces[groups.rank]))
    assert [piece.shape for piece in arrays] == [way.target.shape(rank) for rank in range(mesh.size)]
    np.testing.assert_allclose(whole(way.target, arrays), tensor, atol=1e-10)
    assert elements == [way.elements(rank) for rank in range(mesh.size)], str(way)


@settings(max_examples=25)
@given(data=st.data())
def test_the_way_back_is_the_adjoint(data):
    """<T x, y> = <x, T* y> over logical tensors, and for sums over the ranks' own pieces as well."""
    mesh, shape = data.draw(meshes()), data.draw(shapes)
    source, target = (data.draw(layouts(mesh, len(shape))) for _ in "12")
    replicated = data.draw(st.lists(st.sampled_from(list(mesh.sizes)), unique=True))
    random = np.random.default_rng(0)
    way = path(mesh, shape, source, target, replicated=replicated)
    back = way.backward
    x, y = (random.integers(-9, 9, shape).astype(float) for _ in "xy")
    xs, ys = pieces_of(way.source, x, random), pieces_of(back.source, y, random)
    tx, _ = run_on_all(mesh, lambda groups: way.run(groups, xs[groups.rank]))
    ty, elements = run_on_all(mesh, lambda groups: back.run(groups, ys[groups.rank]))
    forth = (whole(way.target, tx) * y).sum()
    assert forth == pytest.approx((x * whole(back.target, ty)).sum())
    assert elements == [back.elements(rank) for rank in range(mesh.size)]
    if not replicated:
        weights = share(way.target.layout, mesh), share(way.source.layout, mesh)
        pairs = [sum((a * b).sum() for a, b in zip(*pair, strict=True)) for pair in ((tx, ys), (xs, ty))]
        assert [weight * pair for weight, pair in zip(weights, pairs, strict=True)] == pytest.approx([forth, forth])


@settings(max_examples=40)
@given(data=st.data())
def test_no_path_is_dearer_than_a_detour(data):
    """Detours have no strides of their own: where lengths do not divide, some fit better by chance."""
    mesh, shape = data.draw(meshes()), data.draw(shapes)
    a, b, c = (data.draw(layouts(mesh, len(shape), strides=strides)) for strides in (True, False, True))
    total = lambda start, end: sum(move.all_elements for move in path(mesh, shape, start, end).steps)  # noqa: E731
    assert total(a, c) <= total(a, b) + total(b, c)
    ends = Shards(mesh, shape, a.without_trivial_axes(mesh)), Shards(mesh, shape, c.without_trivial_axes(mesh))
    assert lower_bound_elements(*ends) <= total(a, c)


def test_the_least_that_is_missing_is_what_a_move_over_one_axis_sends():
    mesh = Mesh("a=4")
    for source, target, _, elements in TABLE:
        assert lower_bound_elements(Shards(mesh, (64, 96), source), Shards(mesh, (64, 96), target)) == 4 * elements


ONE_AXIS = ["S0:a", "S1:a", "S0/2:a", "P:a", "Pmean:a", "Pmax:a", "B"]


@pytest.mark.parametrize("source", ONE_AXIS)
@pytest.mark.parametrize("target", ONE_AXIS)
def test_every_change_of_one_axis_keeps_the_tensor(source, target):
    tensor = np.random.default_rng(1).integers(-9, 0, (5, 4)).astype(float)  # below 0: a maximum with zeros would show
    way = path(Mesh("a=3"), (5, 4), source, target)
    pieces = pieces_of(way.source, tensor, np.random.default_rng(2))
    arrays, elements = run_on_all(Mesh("a=3"), lambda groups: way.run(groups, pieces[groups.rank]))
    np.testing.assert_allclose(whole(way.target, arrays), tensor, atol=1e-12)
    assert elements == [way.elements(rank) for rank in range(3)]


@pytest.mark.parametrize("dtype", ["bfloat16", "int32", "bool"])
@pytest.mark.parametrize("source", ["S0:a", "Pmax:a", "B"])
@pytest.mark.parametrize("target", ["S1:a", "Pmax:a", "B"])
def test_tensors_of_torch_keep_their_dtype(dtype, source, target):
    tensor = torch.arange(15).reshape(5, 3).to(getattr(torch, dtype))
    mesh = Mesh("a=3")
    way = path(mesh, (5, 3), source, target)
    pieces = [way.source.local(tensor, rank) for rank in range(3)]
    tensors, _ = run_on_all(mesh, lambda groups: way.run(groups, pieces[groups.rank]))
    expected = Shards(mesh, (5, 3), target)
    for rank, piece in enumerate(tensors):
        assert piece.dtype == tensor.dtype
        if "P" not in target:
            assert torch.equal(piece, expected.local(tensor, rank))
    if "P" in target:
        assert torch.equal(torch.stack(tensors).float().amax(0), tensor.float())


async def test_groups_of_all_axes_share_one_channel_over_tcp():
    """Several paths one after another, with messages between the same ranks in several groups."""
    mesh = Mesh("a=2 b=2")
    ways = ["S0:a S1:b", "B", "S0:b S0:a", "S1:a", "P:a P:b", "S0:a"]
    steps = [path(mesh, (5, 7), *pair) for pair in pairwise(ways)]
    tensor = np.arange(35.0).reshape(5, 7)
    ends = await tcp_world(4)

    async def on_rank(end):
        groups, array = MeshGroups(end, 3), steps[0].source.local(tensor, end.rank)
        for step in steps:
            array = await step.run(groups, array)
        return array

    for rank, array in enumerate(await asyncio.gather(*map(on_rank, ends))):
        np.testing.assert_array_equal(array, steps[-1].target.local(tensor, rank))
    nbytes = [sum(step.elements(rank) for step in steps) * 8 for rank in range(4)]
    assert [end.traffic.bytes_sent for end in ends] == nbytes
    await asyncio.gather(*(end.close() for end in ends))


WAYS = [("S0:a S0:b", "S1:b S1:a"), ("S0:a S1:b", "B"), ("P:a P:b", "S0:a S1:b"), ("P:a P:b", "B"), ("S1:a", "S1:b")]


@pytest.mark.parametrize("nodes", [(0, 0, 0, 0), (0, 0, 2, 2)])
@pytest.mark.parametrize(("source", "target"), WAYS)
def test_moves_go_through_the_memory_that_the_ranks_of_a_group_share(source, target, nodes):
    """Ranks of one node send nothing, those of two what `elements` counts. Integers, so that all sums are equal."""
    mesh, tensor, random = Mesh("a=2 b=2"), np.arange(35.0).reshape(5, 7), np.random.default_rng(1)
    way = path(mesh, (5, 7), source, target)
    pieces, ends = pieces_of(way.source, tensor, random), local_world(4, nodes, shared_memory=True)

    async def on_all(through_memory):
        before = [end.traffic.bytes_sent for end in ends]
        groups = [MeshGroups(end, 3 + through_memory, through_memory=through_memory) for end in ends]
        elements = await asyncio.gather(*(rank_groups.elements(way) for rank_groups in groups))
        arrays = await asyncio.gather(*(way.run(rank_groups, pieces[rank_groups.rank]) for rank_groups in groups))
        assert [end.traffic.bytes_sent - low for end, low in zip(ends, before, strict=True)] == [
            8 * n for n in elements
        ]
        return arrays, elements

    async def both():
        return await on_all(True), await on_all(False)

    (arrays, elements), (ring_arrays, ring_elements) = asyncio.run(asyncio.wait_for(both(), 30))
    assert all((array == ring_array).all() for array, ring_array in zip(arrays, ring_arrays, strict=True))
    assert ring_elements == [way.elements(rank) for rank in range(4)]
    assert elements == [0] * 4 if not any(nodes) else sum(elements) <= sum(ring_elements)


def test_meshes_on_which_the_same_ranks_lie_together_have_one_group():
    groups = MeshGroups(world(4)[1], 0)
    assert groups.along(Mesh("a=2 b=2"), ("b",)) is groups.along(Mesh("c=2 d=2"), ("d",))
    assert groups.along(Mesh("a=2 b=2"), ("a", "b")) is groups.along(Mesh("c=4"), ("c",))
    assert groups.along(Mesh("a=2 b=2"), ("b", "a")) is not groups.along(Mesh("c=4"), ("c",))


def test_a_mesh_of_another_size_is_refused():
    with pytest.raises(UsageError, match=r"ranks: 3, mesh: 'a=2' of 2"):
        MeshGroups(world(3)[0], 0).along(Mesh("a=2"), ("a",))


def test_between_two_meshes_each_rank_sends_what_others_hold_afterwards():
    """A matrix of 4 x 6 in two column blocks of two row blocks each, then in four blocks of rows."""
    columns, rows = Shards(Mesh("a=2 b=2"), (4, 6), "S1:a S0:b"), Shards(Mesh("rows=4"), (4, 6), "S0:rows")
    way, tensor = path_between(columns, rows), np.arange(24.0).reshape(4, 6)
    arrays, elements = run_on_all(rows.mesh, lambda groups: way.run(groups, columns.local(tensor, groups.rank)))
    for rank, array in enumerate(arrays):
        np.testing.assert_array_equal(array, rows.local(tensor, rank))
    assert elements == [way.elements(rank) for rank in range(4)] == [3, 6, 6, 3]  # of 6 held, all but what stays
    assert (way.backward.source.mesh, way.backward.target.mesh) == (rows.mesh, columns.mesh)
    same = Shards(Mesh("x=2 y=2"), (4, 6), "S0:x S0:y")
    assert path_between(same, rows).steps == ()


def test_a_tensor_that_some_ranks_share_cannot_change_meshes():
    shared, rows = Shards(Mesh("a=2 b=2"), (4, 6), "S1:a"), Shards(Mesh("rows=4"), (4, 6), "S0:rows")
    with pytest.raises(UsageError, match="not split over all ranks cannot change meshes"):
        path_between(shared, rows)
    with pytest.raises(UsageError, match=r"another shape \(from: \(4, 6\), to: \(6, 4\)\)"):
        path_between(rows, Shards(rows.mesh, (6, 4), "S0:rows"))


def test_what_does_not_fit_is_refused():
    mesh = Mesh("a=2")
    with pytest.raises(UsageError, match="no axis 'b'"):
        path(mesh, (4,), "S0:b", "B")
    with pytest.raises(UsageError, match="no axis 'b'"):
        path(mesh, (4,), "S0:a", "B", replicated=["b"])
    with pytest.raises(UsageError, match="no backward"):
        _ = path(mesh, (4,), "Pmax:a", "B").backward
    with pytest.raises(ValueError, match=r"rank 0: \(4,\), under S0:a: \(2,\)"):
        run_on_all(mesh, lambda groups: path(mesh, (4,), "S0:a", "B").run(groups, np.ones(4)))


def test_every_process_takes_the_same_one_of_equal_paths():
    """Each rank of a team finds the path by itself, and the hashes of names differ from process to process."""
    ends = "Mesh('data=2 tensor=2 row=2'), (16, 16, 16), 'S2:data S2:row S2:tensor', 'S0:row'"
    program = f"from pipelined.sharding import Mesh, path; print(*path({ends}).steps, sep='; ')"
    command = [sys.executable, "-c", program]
    runs = [launched(command, timeout=60, env={"PYTHONHASHSEED": seed}) for seed in ("1", "2")]
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr
    assert runs[0].stdout == runs[1].stdout != "\n"
