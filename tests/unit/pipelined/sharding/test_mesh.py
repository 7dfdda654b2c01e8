"""Meshes: coordinates, groups, and texts that are refused."""

import pytest

from pipelined.errors import UsageError
from pipelined.sharding import Mesh


def test_ranks_are_row_major():
    mesh = Mesh("node=2 gpu=4")
    assert mesh.size == 8 and dict(mesh.sizes) == {"node": 2, "gpu": 4}
    assert mesh.coordinates(6) == {"node": 1, "gpu": 2}
    assert mesh.rank({"node": 1, "gpu": 2}) == 6 and mesh.rank({"gpu": 3}) == 3


def test_a_group_holds_the_ranks_that_differ_on_its_axes_only():
    mesh = Mesh("a=2 b=3 c=2")
    assert mesh.group(9, ["b"]) == (7, 9, 11)
    assert mesh.group(9, ["a", "b"]) == (1, 3, 5, 7, 9, 11)
    assert mesh.group(9, ["b", "a"]) == (1, 7, 3, 9, 5, 11)  # the last axis varies fastest
    assert mesh.group(9, []) == (9,)


def test_a_mesh_without_axes_is_one_rank():
    assert Mesh("").size == 1 and Mesh("").coordinates(0) == {}
    assert Mesh("a=2  b=3") == Mesh("a=2 b=3") != Mesh("b=3 a=2")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gpu", r"'gpu' \(mesh: 'gpu'\); write NAME=RANKS"),
        ("gpu=0", "'gpu=0'"),
        ("gpu=-2", "'gpu=-2'"),
        ("2=2", "'2=2'"),
        ("gpu=2 gpu=4", "'gpu' is named twice"),
    ],
)
def test_a_text_that_is_no_mesh_is_refused(text, says):
    with pytest.raises(UsageError, match=says):
        Mesh(text)


def test_unknown_axes_and_ranks_are_refused():
    with pytest.raises(UsageError, match=r"no axis 'row' .*; known: node, gpu"):
        Mesh("node=2 gpu=4").group(0, ["row"])
    with pytest.raises(UsageError, match=r"no rank 8 .*; ranks are 0 to 7"):
        Mesh("node=2 gpu=4").coordinates(8)
