"""The training that a program reads from the directory: every field is checked."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, TypeVar, get_args, get_origin, get_type_hints

from pipelined.errors import UsageError

UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)
"""Errors of reading a record of another release."""
PROGRAMS = {"a swarm": "apps.swarm", "Ravnest": "apps.ravnest"}
"""What a directory belongs to, and its program."""


class Checked(Protocol):
    """A dataclass of plain settings with a check of its own."""

    def check(self) -> None:
        """Raises UsageError: the settings cannot be."""


C = TypeVar("C", bound=Checked)


@dataclass(frozen=True)
class TrainingTask:
    """What a swarm or Ravnest trains."""

    settings: Any
    vocabulary: int
    text: str

    def to_dict(self) -> dict[str, Any]:
        """The task as the directory keeps it: its settings have the key `subject`."""
        plain = asdict(self)
        return {"subject": plain.pop("settings"), **plain}

    def differences(self, other: "TrainingTask") -> str:
        """What differs in another task, in words."""
        settings = [(name, value, getattr(other.settings, name)) for name, value in asdict(self.settings).items()]
        settings += [("vocabulary", self.vocabulary, other.vocabulary), ("text", self.text[:16], other.text[:16])]
        return ", ".join(
            f"{name}: {value} here, {other_value} there"
            for name, value, other_value in settings
            if value != other_value
        )


def read_settings(kind: type[C], values: dict[str, Any]) -> C:
    """Settings from their plain values.

    Raises:
        ValueError, TypeError, KeyError: a value of another type, or a setting that there is not.
        UsageError: as `check`.
    """
    kinds = get_type_hints(kind)
    for name, value in values.items():
        if not _fits_type(value, kinds[name]):
            raise ValueError(f"{name} is {value!r}")
    config = kind(**values)
    config.check()
    return config


def unknown_task(error: Exception, data: bytes, program: str) -> UsageError:
    """The error of a record that is not of this release, or of another program (`program` is a key of `PROGRAMS`)."""
    owner = "Ravnest" if data.startswith(b'{"ravnest":') else "a swarm" if b'"subject":' in data else program
    if owner != program:
        remedy = f"use `{PROGRAMS[owner]}`, or another coordinator"
        return UsageError(f"this directory belongs to {owner}, not to {program}; {remedy}")
    return UsageError(f"the directory has no training that this release knows ({error}); use one release")


def _fits_type(value: Any, kind: Any) -> bool:
    """Whether a value fits a field: one of its literals, or exactly of one of its types."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    return type(value) in (get_args(kind) or (kind,))
