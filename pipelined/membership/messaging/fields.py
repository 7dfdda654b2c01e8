"""The fields of a message: how each is written as plain values and arrays, and checked when it is read.

A message class annotates its fields, and `schema_of` finds the schema of an annotation:

    step: Annotated[int, whole()]                a whole number in a range
    peers: Annotated[tuple[Name, ...], ListOf()] a list of limited length; of each item the schema of `Name`
    round: RoundName                             a NamedTuple or dataclass: the list of its fields
    score: Score | None                          None, or the schema of `Score`
    sums: Annotated[np.ndarray, OneArray(...)]   one array, beside the plain values

No size that was received is used before it is checked, and reading raises `Malformed` alone.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from reprlib import repr  # of limited depth and length: what is shown came off the network
from types import NoneType, UnionType
from typing import Annotated, Any, Protocol, Union, get_args, get_origin, get_type_hints

import numpy as np

from pipelined.membership.messaging.reasons import Reason
from transports import Block
from transports.rpc import Rejected

MAX_INTEGER = (1 << 62) - 1
"""Largest whole number in a message."""
MAX_NUMBER = 1e300
"""Largest number accepted from the network, so that sums of such numbers are finite."""
MAX_NAME = 512
"""Most characters of a name or an address: a directory's keys are not longer."""
MAX_ITEMS = 4096
"""Most items of a list in a message."""


class Malformed(Rejected):
    """A message that cannot be read; `why` names the field, the value and the limit."""

    def __init__(self, why: str):
        super().__init__(Reason.MALFORMED, why=why)


class Schema(Protocol):
    """How one field is written and read; `str` of a schema states its limits for readers."""

    def write(self, value: Any, blocks: list[Any]) -> Any:
        """The plain value of a field; its arrays are appended to `blocks`."""

    def read(self, value: Any, blocks: deque[Block]) -> Any:
        """The value of a field from its plain value; its arrays are taken from `blocks`. Raises Malformed."""


@dataclass(frozen=True, slots=True)
class PlainValue:
    """A value that msgpack carries as it is.

    Args:
        text: what it is.
        accepts: whether a received value is that.
    """

    text: str
    accepts: Callable[[Any], bool]

    def write(self, value: Any, blocks: list[Any]) -> Any:
        return value

    def read(self, value: Any, blocks: deque[Block]) -> Any:
        if not self.accepts(value):
            raise Malformed(f"no {self.text} (got: {repr(value)})")
        return value

    def __str__(self) -> str:
        return self.text


def whole(max_value: int = MAX_INTEGER) -> PlainValue:
    """A whole number from 0 to `max_value`."""
    limit = f" to {max_value:,}" if max_value < MAX_INTEGER else ""
    return PlainValue(f"whole number from 0{limit}", lambda value: type(value) is int and 0 <= value <= max_value)


def number(min_value: float = -MAX_NUMBER) -> PlainValue:
    """A number from `min_value` to `MAX_NUMBER`."""
    text = f"number from {min_value:g} to {MAX_NUMBER:g}"
    return PlainValue(text, lambda value: type(value) in (int, float) and min_value <= value <= MAX_NUMBER)


def text(max_size: int = MAX_NAME) -> PlainValue:
    """Text of at most `max_size` characters."""
    return PlainValue(
        f"text of at most {max_size} characters", lambda value: type(value) is str and len(value) <= max_size
    )


def raw(size: int) -> PlainValue:
    """Exactly `size` bytes."""
    return PlainValue(f"{size} bytes", lambda value: type(value) is bytes and len(value) == size)


FLAG = PlainValue("true or false", lambda value: type(value) is bool)
ANY = PlainValue("any value", lambda value: True)


@dataclass(frozen=True, slots=True)
class ListOf:
    """A tuple, or a mapping, of `min_items` to `max_items` items; on the wire a list, of pairs for a mapping.

    Args:
        item: the schema of an item; `schema_of` fills it in.
        pairs: whether the value is a mapping.
    """

    max_items: int = MAX_ITEMS
    min_items: int = 0
    item: Schema = ANY
    pairs: bool = False

    def write(self, value: Any, blocks: list[Any]) -> list[Any]:
        return [self.item.write(item, blocks) for item in (value.items() if self.pairs else value)]

    def read(self, value: Any, blocks: deque[Block]) -> Any:
        if type(value) is not list or not self.min_items <= len(value) <= self.max_items:
            raise Malformed(f"not a list of {self.min_items} to {self.max_items} items (got: {repr(value)})")
        items = tuple(self.item.read(item, blocks) for item in value)
        if self.pairs and len(dict(items)) < len(items):
            raise Malformed(f"a key twice (got: {repr(value)})")
        return dict(items) if self.pairs else items

    def __str__(self) -> str:
        return f"list of {f'{self.min_items} to' if self.min_items else 'at most'} {self.max_items:,}: {self.item}"


@dataclass(frozen=True, slots=True)
class Nullable:
    """None, or a value of another schema."""

    schema: Schema

    def write(self, value: Any, blocks: list[Any]) -> Any:
        return None if value is None else self.schema.write(value, blocks)

    def read(self, value: Any, blocks: deque[Block]) -> Any:
        return None if value is None else self.schema.read(value, blocks)

    def __str__(self) -> str:
        return f"none, or {self.schema}"


@dataclass(frozen=True, slots=True)
class FieldList:
    """A dataclass, a NamedTuple or a pair: the list of its fields, in their order."""

    build: Any
    fields: tuple[tuple[str, Schema], ...]

    def write(self, value: Any, blocks: list[Any]) -> list[Any]:
        parts = value if isinstance(value, tuple) else [getattr(value, name) for name, _ in self.fields]
        return [schema.write(part, blocks) for part, (_, schema) in zip(parts, self.fields, strict=True)]

    def read(self, value: Any, blocks: deque[Block]) -> Any:
        if type(value) is not list or len(value) != len(self.fields):
            raise Malformed(f"not a list of {len(self.fields)} fields (got: {repr(value)})")
        parts = []
        for item, (name, schema) in zip(value, self.fields, strict=True):
            try:
                parts.append(schema.read(item, blocks))
            except Malformed as error:
                raise Malformed(f"{name}: {error.facts['why']}") from None
        return self.build(*parts)

    def __str__(self) -> str:
        return "(" + ", ".join(f"{name}: {schema}" if name else str(schema) for name, schema in self.fields) + ")"


@dataclass(frozen=True, slots=True)
class OneArray:
    """One array of one dimension and one of these dtypes, beside the plain values."""

    dtypes: tuple[str, ...]

    def write(self, value: Any, blocks: list[Any]) -> None:
        blocks.append(value)

    def read(self, value: Any, blocks: deque[Block]) -> np.ndarray:
        if value is not None or not blocks:
            raise Malformed(f"no array (got: {repr(value)})")
        block = blocks.popleft()
        if block.dtype not in self.dtypes or len(block.shape) != 1:
            raise Malformed(f"not one dimension of {' or '.join(self.dtypes)} (got: {block.dtype} {block.shape})")
        return block.numpy()

    def __str__(self) -> str:
        return f"array of one dimension, {' or '.join(self.dtypes)}"


@dataclass(frozen=True, slots=True)
class Arrays:
    """Arrays of any layout, which their reader checks, beside the plain values; on the wire their number."""

    def write(self, value: Any, blocks: list[Any]) -> int:
        blocks.extend(value)
        return len(value)

    def read(self, value: Any, blocks: deque[Block]) -> tuple[Block, ...]:
        if type(value) is not int or not 0 <= value <= len(blocks):
            raise Malformed(f"not a number of arrays (got: {repr(value)}, arrays: {len(blocks)})")
        return tuple(blocks.popleft() for _ in range(value))

    def __str__(self) -> str:
        return "arrays"


@cache
def schema_of(hint: Any) -> Schema:
    """The schema of an annotation. Raises TypeError: it has none."""
    origin = get_origin(hint)
    inner = get_args(hint)
    if origin is Annotated:
        return _with_item_schema(*inner)
    if origin in (Union, UnionType) and len(inner) == 2 and NoneType in inner:
        return Nullable(schema_of(next(kind for kind in inner if kind is not NoneType)))
    if origin is tuple and Ellipsis not in inner:
        return _pair(inner)
    if hint is bool:
        return FLAG
    if is_dataclass(hint) or hasattr(hint, "_fields"):
        hints = get_type_hints(hint, include_extras=True)
        names = hint._fields if hasattr(hint, "_fields") else [field.name for field in fields(hint)]
        return FieldList(hint, tuple((name, schema_of(hints[name])) for name in names))
    raise TypeError(f"no schema for a field of type {hint!r}")


def _with_item_schema(hint: Any, schema: Schema) -> Schema:
    """The schema of an annotated type; that of a list gets the schema of its items."""
    if not isinstance(schema, ListOf):
        return schema
    pairs = get_origin(hint) is not tuple
    inner = get_args(hint)
    return ListOf(schema.max_items, schema.min_items, _pair(inner) if pairs else schema_of(inner[0]), pairs)


def _pair(hints: tuple[Any, ...]) -> Schema:
    return FieldList(lambda *parts: parts, tuple(("", schema_of(hint)) for hint in hints))
