"""Every schema reads what it wrote, and rejects all else as malformed."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest

from pipelined.membership.messaging.fields import (
    ANY,
    MAX_INTEGER,
    Arrays,
    ListOf,
    Malformed,
    OneArray,
    number,
    raw,
    schema_of,
    text,
    whole,
)
from transports import Block


class Pair(NamedTuple):
    left: Annotated[int, whole(9)]
    right: bool


@dataclass(frozen=True)
class Nested:
    pair: Pair
    names: Annotated[tuple[Annotated[str, text(3)], ...], ListOf(2)]


SMALL = Annotated[int, whole(9)]
RIGHT = [
    (bool, True, True),
    (SMALL, 9, 9),
    (Annotated[int, whole()], MAX_INTEGER, MAX_INTEGER),
    (Annotated[float, number()], -1.5, -1.5),
    (Annotated[float, number(0.0)], 3, 3),
    (Annotated[str, text(3)], "abc", "abc"),
    (Annotated[bytes, raw(2)], b"ab", b"ab"),
    (SMALL | None, None, None),
    (SMALL | None, 4, 4),
    (Annotated[tuple[SMALL, ...], ListOf(3)], (1, 2), [1, 2]),
    (Annotated[Mapping[SMALL, Annotated[str, text()]], ListOf()], {1: "a"}, [[1, "a"]]),
    (tuple[SMALL, bool], (1, False), [1, False]),
    (Pair, Pair(1, True), [1, True]),
    (Nested, Nested(Pair(0, False), ("a", "b")), [[0, False], ["a", "b"]]),
    (Annotated[Any, ANY], [None], [None]),
]


@pytest.mark.parametrize("hint, value, wire", RIGHT)
def test_a_value_is_written_as_plain_values_and_read_again(hint, value, wire):
    schema, blocks = schema_of(hint), []
    assert schema.write(value, blocks) == wire and not blocks
    assert schema.read(wire, deque()) == value


STRANGE = [
    True,
    -1,
    10,
    1.0,
    "1",
    "abcd",
    b"abc",
    float("nan"),
    float("inf"),
    1e301,
    [],
    [1],
    [1, 2],
    [10],
    {},
    {1: 2},
    None,
]
WRONG = {
    bool: [0, 1, None, "true"],
    SMALL: [*STRANGE],
    Annotated[float, number(0.0)]: [True, -1, "1", float("nan"), float("inf"), 1e301, None, [1.0]],
    Annotated[str, text(3)]: ["abcd", b"abc", 1, None],
    Annotated[bytes, raw(2)]: ["ab", b"a", b"abc", None],
    SMALL | None: [10, "1"],
    Annotated[tuple[SMALL, ...], ListOf(3, 1)]: [[], [1, 2, 3, 4], [10], {1: 2}, "abc", None],
    Annotated[Mapping[SMALL, bool], ListOf()]: [[[1, True], [1, False]], [[1]], [1], {1: True}],
    Pair: [[1], [1, True, 2], [True, 1], {"left": 1, "right": True}, None],
}


@pytest.mark.parametrize("hint, told", [(hint, told) for hint, all_told in WRONG.items() for told in all_told])
def test_all_else_is_malformed(hint, told):
    with pytest.raises(Malformed):
        schema_of(hint).read(told, deque())


def test_what_is_malformed_is_named_by_its_fields():
    with pytest.raises(Malformed, match=r"pair: left: no whole number from 0 to 9 \(got: 10\)"):
        schema_of(Nested).read([[10, True], []], deque())


def test_a_value_of_any_depth_is_shown_in_short():
    deep = None
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(Malformed) as caught:
        schema_of(SMALL).read(deep, deque())
    assert len(str(caught.value)) < 200


VECTOR = schema_of(Annotated[np.ndarray, OneArray(("int64", "float64"))])


def test_arrays_are_beside_the_plain_values():
    blocks = []
    assert VECTOR.write(np.arange(3), blocks) is None
    assert schema_of(Annotated[Any, Arrays()]).write([np.zeros(1), np.ones(2)], blocks) == 2
    remaining = deque(map(Block.of, blocks))
    assert VECTOR.read(None, remaining).tolist() == [0, 1, 2]
    assert [block.shape for block in schema_of(Annotated[Any, Arrays()]).read(2, remaining)] == [(1,), (2,)]


@pytest.mark.parametrize(
    "told, arrays", [(None, []), (1, [np.zeros(1)]), (None, [np.zeros(1, np.int8)]), (None, [np.zeros((1, 1))])]
)
def test_a_vector_has_one_dimension_and_a_known_dtype(told, arrays):
    with pytest.raises(Malformed):
        VECTOR.read(told, deque(map(Block.of, arrays)))


@pytest.mark.parametrize("told", [3, -1, True, None, "2", 1 << 62])
def test_arrays_are_as_many_as_there_are(told):
    with pytest.raises(Malformed):
        schema_of(Annotated[Any, Arrays()]).read(told, deque([Block.of(np.zeros(1))] * 2))


def test_a_type_without_a_schema_is_named():
    with pytest.raises(TypeError, match="no schema for a field of type"):
        schema_of(int)
