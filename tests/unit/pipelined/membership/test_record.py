"""Any process with the key can write records: one that is not of its kind is a ValueError, whatever it holds."""

import sys
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipelined
from pipelined.membership.record import Record
from pipelined.ravnest.records.generation import Generation

ROOT = Path(pipelined.__file__).parent
PLAIN = st.none() | st.booleans() | st.integers(-2, 1 << 40) | st.floats() | st.text(max_size=3) | st.binary(max_size=9)
ANY = st.recursive(
    PLAIN,
    lambda part: (
        st.lists(part, max_size=6) | st.dictionaries(st.text(max_size=2) | st.integers(-1, 9), part, max_size=3)
    ),
    max_leaves=12,
)
OF_KIND = {
    int: st.integers(-2, 1 << 40),
    float: st.floats(),
    str: st.text(max_size=3),
    bool: st.booleans(),
    list: st.lists(ANY, max_size=3),
    dict: st.dictionaries(st.text(max_size=2) | st.integers(-1, 9), ANY, max_size=3),
}


def kinds() -> list[type[Record]]:
    """Every kind of record in the package, by name: each worker of `-n` imports the modules in an order of its own."""
    for path in ROOT.rglob("*.py"):
        if "(Record)" in path.read_text():
            import_module(".".join(("pipelined", *path.relative_to(ROOT).with_suffix("").parts)))
    classes = [
        kind
        for kind in Record.__subclasses__()
        if kind.__module__.startswith("pipelined.") and getattr(sys.modules[kind.__module__], kind.__name__) is kind
    ]
    return sorted(classes, key=lambda kind: kind.__qualname__)


def values(kind: type) -> st.SearchStrategy[dict[str, object]]:
    """The right keys, most with a value of the right type."""
    return st.fixed_dictionaries(
        {
            each.metadata.get("stored", each.name): OF_KIND[each.metadata.get("kind") or each.type]
            for each in fields(kind)
        }
    )


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
@settings(max_examples=50)
@given(data=st.data())
def test_what_is_not_of_the_kind_is_a_value_error(kind, data):
    packed = msgpack.packb(data.draw(values(kind)))
    try:
        record = kind.unpack(packed)
    except ValueError:
        return
    assert isinstance(record, kind) and isinstance(record.pack(), bytes)


@pytest.mark.parametrize("rows", [[1], [None], [[]], [[[]]], [[["a", "b", 1, 0, 1]]], [{"a": 1}], [["a"]]])
def test_rows_that_are_no_lists_of_places_name_the_record(rows):
    with pytest.raises(ValueError, match="Generation"):
        Generation.unpack(msgpack.packb({"number": 1, "rows": rows}))


@dataclass(frozen=True)
class Ship(Record):
    name: str
    cargo: int = field(default=0, metadata={"stored": "load", "absent": 0})


def test_a_field_with_another_stored_name_may_be_absent():
    assert Ship.unpack(msgpack.packb({"name": "Argo"})) == Ship("Argo")
    assert Ship.from_stored(Ship("Argo", 5).stored()) == Ship("Argo", 5)
    with pytest.raises(ValueError, match=r"not a Ship .*expected: \['load', 'name'\]"):
        Ship.from_stored({"name": "Argo", "cargo": 5})
