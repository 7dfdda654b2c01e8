"""The base of every record that a directory holds: packed to bytes, and unpacked with checks.

Every field of a record is checked when it is read, because any process with the key can write records.
"""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Self

import msgpack


class Record:
    """A record: packed to bytes, and unpacked with checks."""

    @property
    def copy_key(self) -> str | None:
        """A second key under which this record is stored; None: no second key."""
        return None

    def stored(self) -> dict[str, Any]:
        """The fields by the names under which they are stored: a field's own, or its metadata `stored`."""
        kind: Any = type(self)
        return {stored: getattr(self, name) for stored, (name, _) in _fields(kind).items()}

    def pack(self) -> bytes:
        return msgpack.packb(self.stored())

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Read a record.

        Raises:
            ValueError: the bytes are not a record of this kind; the text names the field.
        """
        return cls.from_stored(_mapping(cls, data))

    @classmethod
    def from_stored(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `stored`, also for values that were kept as JSON. Raises ValueError: as `unpack`."""
        record: Any = cls
        known_fields = _fields(record)
        values = {**_absent(record), **values}
        if values.keys() != known_fields.keys():
            raise ValueError(f"not a {cls.__name__} (fields: {sorted(values)}, expected: {sorted(known_fields)})")
        for name, value in values.items():
            kind = known_fields[name][1]
            if type(value) is not kind:
                fact = f"{cls.__name__}.{name} is a {type(value).__name__}"
                raise ValueError(f"{fact}, expected a {kind.__name__}")
        try:
            return cls(**{known_fields[name][0]: value for name, value in values.items()})
        except (TypeError, AttributeError, LookupError, OverflowError) as error:  # of a check, by what a list holds
            raise ValueError(f"not a {cls.__name__}: {error}") from error


@cache
def _fields(cls: Any) -> Mapping[str, tuple[str, Any]]:
    """Name and type of each field, by the name under which it is stored.

    Cached, because in a large swarm every process reads every record.
    """
    return {
        field.metadata.get("stored", field.name): (field.name, field.metadata.get("kind") or field.type)
        for field in fields(cls)
    }


@cache
def _absent(cls: Any) -> Mapping[str, Any]:
    """By name, the value that a field has in a record of an earlier release, which did not write it (`absent`)."""
    metadata_by_name = ((field.metadata.get("stored", field.name), field.metadata) for field in fields(cls))
    return {name: metadata["absent"] for name, metadata in metadata_by_name if "absent" in metadata}


def address_in(data: bytes) -> str:
    """The address in a record of any kind; "" if it has no address, or cannot be read."""
    try:
        address = _mapping(Record, data).get("address")
    except ValueError:
        return ""
    return address if type(address) is str else ""


def _mapping(cls: type, data: bytes) -> dict[str, Any]:
    try:
        values = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:  # TypeError: a list as a key
        raise ValueError(f"not a {cls.__name__}: {error}") from error
    if type(values) is not dict or any(type(name) is not str for name in values):
        raise ValueError(f"not a {cls.__name__} (got: {type(values).__name__})")
    return values
