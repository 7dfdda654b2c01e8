"""What a member reports to status, checked field by field: any process that has the key may answer.

A field that is unknown, or of another type than `FIELDS` says, is left out. So a report cannot end a look.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pipelined.aio.events import LONGEST

MOST_ENTRIES = 1024
"""Entries of one table or list that are read. A trainer lists each peer that answered it."""


def said(note: object) -> dict[str, Any]:
    """The readable fields of an answer to `status`."""
    told = note if type(note) is dict else {}
    read = {name: kind(told[name]) for name, kind in FIELDS.items() if name in told}
    return {name: value for name, value in read.items() if value is not None}


def _number(value: object) -> float | None:
    return value if type(value) in (int, float) and value >= 0 else None


def _finite(value: object) -> float | None:
    return value if _number(value) is not None and value < float("inf") else None


def _whole(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _flag(value: object) -> bool | None:
    return value if type(value) is bool else None


def _text(value: object) -> str | None:
    return value[:LONGEST] if type(value) is str else None


def _by_name(kind: Callable[[object], Any]) -> Callable[[object], dict[str, Any] | None]:
    def read(value: object) -> dict[str, Any] | None:
        if type(value) is not dict:
            return None
        entries = ((_text(name), kind(entry)) for name, entry in list(value.items())[:MOST_ENTRIES])
        return {name: entry for name, entry in entries if name is not None and entry is not None}

    return read


def _list(value: object) -> list[Any] | None:
    return value[:MOST_ENTRIES] if type(value) is list else None


FIELDS: Mapping[str, Callable[[object], Any]] = {
    **dict.fromkeys(("step", "counted", "waiting", "forwards", "backwards", "sent", "received"), _whole),
    **dict.fromkeys(("done", "left", "unscored", "attempt"), _whole),
    **dict.fromkeys(("donor", "unsaved", "step_phase", "last_failure"), _text),
    **dict.fromkeys(("cut_off", "leads"), _flag),
    **dict.fromkeys(("answers", "rejected", "refused"), _by_name(_whole)),
    "rate": _finite,
    "banned": _by_name(_number),
    "events": _list,
}
"""By field, what reads it: the value, or None if it is not of this kind."""
