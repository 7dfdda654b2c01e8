"""The base of every record that a directory holds: packed to bytes, and unpacked with checks.

Every field of a record is checked when it is read, because any process with the key can write records.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import cache
from typing import Any, Self

import msgpack


class Record:
    """A record: packed to bytes, and unpacked with checks."""

    @property
    def index(self) -> str | None:
        """A second key under which this record is stored; None: no second key."""
        return None

    def pack(self) -> bytes:
        return msgpack.packb(asdict(self))

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Read a record.

        Raises:
            ValueError: the bytes are not a record of this kind; the text names the field.
        """
        told, wanted = _mapping(cls, data), _kinds(cls)
        if told.keys() != wanted.keys():
            raise ValueError(f"not a {cls.__name__} (fields: {sorted(told)}, expected: {sorted(wanted)})")
        for name, value in told.items():
            if type(value) is not wanted[name]:
                fact = f"{cls.__name__}.{name} is a {type(value).__name__}"
                raise ValueError(f"{fact}, expected a {wanted[name].__name__}")
        return cls(**told)


@cache
def _kinds(cls: type) -> Mapping[str, type]:
    """The type of each field; cached, because in a large swarm every process reads every record."""
    return {entry.name: entry.metadata.get("kind") or entry.type for entry in fields(cls)}


def address_in(data: bytes) -> str:
    """The address in a record of any kind; "" if it has no address, or cannot be read."""
    try:
        address = _mapping(Record, data).get("address")
    except ValueError:
        return ""
    return address if type(address) is str else ""


def _mapping(cls: type, data: bytes) -> dict[str, Any]:
    try:
        told = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:  # TypeError: a list as a key
        raise ValueError(f"not a {cls.__name__}: {error}") from error
    if type(told) is not dict or any(type(name) is not str for name in told):
        raise ValueError(f"not a {cls.__name__} (got: {type(told).__name__})")
    return told
