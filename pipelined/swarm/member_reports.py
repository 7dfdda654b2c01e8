"""What a member reports to status, checked field by field: any process with the key may send it.

A field that is unknown, or of another type than `FIELDS` says, is left out. So a report cannot end a look.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pipelined.aio.events import LONGEST

MOST_ENTRIES = 1024
"""The most entries of one table or list. A trainer lists each peer that replied to it."""


def checked(note: object) -> dict[str, Any]:
    """The valid fields of a reply to `status`."""
    report = note if type(note) is dict else {}
    read = {name: kind(report[name]) for name, kind in FIELDS.items() if name in report}
    return {name: value for name, value in read.items() if value is not None}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if value >= 0 else None


def _finite(value: object) -> float | None:
    number = _number(value)
    return number if number is not None and number < float("inf") else None


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
"""The check of each field: it returns the value, or None if the value is of another kind."""
