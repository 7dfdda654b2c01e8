"""What several tests of sharded tensors share: ranks in one process, whole tensors from pieces, and random layouts."""

import asyncio
from functools import reduce
from math import prod

import numpy as np
from hypothesis import strategies as st

from pipelined.sharding import Layout, Mesh, MeshGroups, Shards
from transports.local import world

REDUCE = {"sum": np.add, "mean": np.add, "max": np.maximum}


def run_on_all(mesh, call, element_bytes=8):
    """Run a coroutine on every rank of a mesh. Returns the results, and the elements that each rank sent."""
    ends = world(mesh.size)

    async def main():
        return await asyncio.gather(*(call(MeshGroups(end, 3)) for end in ends))

    results = asyncio.run(asyncio.wait_for(main(), 30))
    return results, [end.traffic.bytes_sent / element_bytes for end in ends]


def indices(ranges):
    return [index for low, high in ranges for index in range(low, high)]


def whole(shards, pieces):
    """The tensor that the ranks' pieces are together, each rank's piece looked at once."""
    mesh, layout = shards.mesh, shards.layout
    copies = {}
    for rank, piece in enumerate(pieces):
        place = np.ix_(*map(indices, shards.pieces(rank)))
        tensor = np.full(shards.lengths, np.nan)
        tensor[place] = np.asarray(piece)
        coordinates = mesh.coordinates(rank)
        copy = tuple(
            coordinates[axis] for axis in mesh.sizes if axis not in layout.partial and axis not in layout.split
        )
        summand = tuple(coordinates[axis] for axis in layout.partial)
        before = copies.setdefault(copy, {}).get(summand, np.full(shards.lengths, np.nan))
        assert np.isnan(before[place]).all()  # no element twice
        copies[copy][summand] = np.where(np.isnan(before), tensor, before)
    op = max(layout.partial.values(), key=["sum", "mean", "max"].index, default="sum")
    tensors = [reduce(REDUCE[op], summands.values()) * share(layout, mesh) for summands in copies.values()]
    for tensor in tensors[1:]:
        np.testing.assert_array_equal(tensor, tensors[0])  # copies are equal
    return tensors[0]


def share(layout, mesh):
    """The share that one rank's piece has in the tensor: 1 over the ranks of each mean."""
    return 1 / prod(mesh.sizes[axis] for axis, op in layout.partial.items() if op == "mean")


def pieces_of(shards, tensor, random):
    """Random pieces that are the tensor together: of partial axes random summands."""
    mesh, layout = shards.mesh, shards.layout
    axes = list(layout.partial)
    counts = [mesh.sizes[axis] for axis in axes]
    summands = random.integers(-9, 9, (*counts, *tensor.shape)).astype(float)
    first = (0,) * len(axes)
    if "max" in layout.partial.values():
        summands = np.minimum(summands, tensor)
        summands[first] = tensor
    else:
        summands[first] = 0
        sum_of_summands = summands.sum(tuple(range(len(axes))))
        summands[first] = tensor / share(layout, mesh) - sum_of_summands
    split = Shards(mesh, shards.lengths, Layout.of(layout.cuts))
    coordinates = [mesh.coordinates(rank) for rank in range(mesh.size)]
    return [split.local(summands[tuple(coordinates[rank][axis] for axis in axes)], rank) for rank in range(mesh.size)]


AXES = "abcd"


@st.composite
def meshes(draw, most=36):
    sizes = draw(st.lists(st.sampled_from([2, 3, 5]), min_size=1, max_size=4).filter(lambda s: np.prod(s) <= most))
    return Mesh(" ".join(f"{axis}={size}" for axis, size in zip(AXES, sizes, strict=False)))


@st.composite
def layouts(draw, mesh, dimensions, ops=("", "mean"), strides=True):
    words = []
    op = draw(st.sampled_from(ops))
    for axis in draw(st.permutations(list(mesh.sizes))):
        kind = draw(st.sampled_from(["S", "S", "P", "B"]))
        if kind == "S":
            strided = draw(st.sampled_from(["", "", "", "/2", "/3"])) if strides else ""
            words.append(f"S{draw(st.integers(0, dimensions - 1))}{strided}:{axis}")
        elif kind == "P":
            words.append(f"P{op}:{axis}")
    return Layout(" ".join(words))


shapes = st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 12]), min_size=1, max_size=3).map(tuple)
