"""Events: the decisions of this process, with their reasons.

An event has a kind ("peer evicted") and facts (stage=0, why="..."). `emit` records events that go as planned; `warn`
records events that cost a peer, a step or a record. The process keeps the last `KEPT` events for `status` and crash
reports; each is also one line of the logger "pipelined", which `log_to_stderr` shows. Facts may come from the network,
so they are sanitised and cut here: no control character reaches a terminal, and no text grows without bound.
"""

import json
import logging
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, get_args

from pipelined.errors import UsageError, printable

KEPT = 300
"""The most events that a process keeps; older ones are dropped."""
MAX_TEXT = 200
"""The most characters of one fact; see `shorten`."""
REPORTED = 20
"""Events at the end of a crash report."""
MAX_TIME = 1e11
"""The latest time of an event that is accepted, in seconds since 1970: some thousand years from now."""
MAX_FACTS = 16
"""The most facts that are read from an event of another process."""

Level = Literal["debug", "info", "warning", "error"]
Fact = str | int | float | bool | None

_logger = logging.getLogger("pipelined")
_logger.addHandler(logging.NullHandler())  # without a handler Python itself prints warnings
_events: deque["Event"] = deque(maxlen=KEPT)


@dataclass(frozen=True, slots=True)
class Event:
    """One decision.

    Args:
        at: seconds since 1970, by this machine's clock.
        level: the level of the log line, as in the module `logging`.
        kind: a few words, the same for every decision of one kind.
    """

    at: float
    level: int
    kind: str
    facts: Mapping[str, Fact]

    def __str__(self) -> str:
        facts = " ".join(f"{name}={_rendered(value)}" for name, value in self.facts.items())
        return f"{self.kind}: {facts}" if facts else self.kind

    def to_dict(self) -> dict[str, Fact | Mapping[str, Fact]]:
        """The event as plain objects for JSON and msgpack."""
        level = logging.getLevelName(self.level).lower()
        return {"at": self.at, "level": level, "kind": self.kind, "facts": dict(self.facts)}


def emit(kind: str, /, **facts: object) -> None:
    """Record a decision. Cost: microseconds; writes a line only if the log shows this level."""
    _record(logging.INFO, kind, facts)


def warn(kind: str, /, **facts: object) -> None:
    """Record a decision that costs a peer, a step or a record."""
    _record(logging.WARNING, kind, facts)


def recent(count: int = KEPT) -> list[Event]:
    """The last events of this process, oldest first."""
    return list(_events)[-count:] if count > 0 else []


def recent_text() -> str:
    """The last events as lines, for a crash report; "" if there are none."""
    lines = [f"  {_clock_time(event.at)} {event}" for event in recent(REPORTED)]
    return "\n".join(["last events:", *lines]) if lines else ""


def log_to_stderr(level: Level) -> None:
    """Write events of this level and above to stderr, one line each; a second call changes the level.

    Raises:
        UsageError: an unknown level.
    """
    if level not in get_args(Level):
        raise UsageError(f"there is no log level {level!r}; use one of {', '.join(get_args(Level))}")
    if not any(isinstance(handler, _ToStderr) for handler in _logger.handlers):
        _logger.addHandler(_ToStderr())
    _logger.setLevel(level.upper())


class _ToStderr(logging.Handler):
    """Writes each line at once to the current `sys.stderr`; drops a line that cannot be written."""

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{_clock_time(record.created)} {record.levelname.lower()} {record.getMessage()}\n"
        with suppress(OSError, ValueError):  # a closed pipe or a full disk must not end the process
            sys.stderr.write(line)
            sys.stderr.flush()


def _record(level: int, kind: str, facts: Mapping[str, object]) -> None:
    event = Event(time.time(), level, kind, {name: _to_fact(value) for name, value in facts.items()})
    _events.append(event)
    _logger.log(level, "%s", event)


def parse_event(plain: object) -> Event | None:
    """Parse and sanitise an event that another process sent (`Event.to_dict`); None if it is not an event."""
    if type(plain) is not dict:
        return None
    at, kind, facts = plain.get("at"), plain.get("kind"), plain.get("facts")
    if type(kind) is not str or type(facts) is not dict:
        return None
    if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at < MAX_TIME:
        return None
    level = logging.WARNING if plain.get("level") == "warning" else logging.INFO
    facts_shown = {sanitise(name): _to_fact(value) for name, value in list(facts.items())[:MAX_FACTS]}
    return Event(float(at), level, sanitise(kind), facts_shown)


def event_line(event: Event, by: str) -> str:
    """An event as one line of text.

    Args:
        by: the process that sent it.
    """
    return f"{_clock_time(event.at)} {sanitise(by)}: {event}"


def sanitise(text: object) -> str:
    """Text from the network, cut and without control characters, so that it can be printed."""
    return printable(str(text)[:MAX_TEXT], but="")


def shorten(text: str) -> str:
    """The text, cut to `MAX_TEXT` in its middle: a reason begins with the fact and ends with the remedy."""
    half = MAX_TEXT // 2
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - half - 1]}…{text[-half:]}"


def _to_fact(value: object) -> Fact:
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int) and abs(value) < 1 << 63:
        return int(value)
    return shorten(str(value))


def _rendered(value: Fact) -> str:
    """A fact as it is written in a line: text is quoted unless it is one plain word; control characters are escaped."""
    if not isinstance(value, str):
        return f"{value:.6g}" if isinstance(value, float) else str(value)
    plain = value.isascii() and value.isprintable() and value and not set(value) & set(' "=')
    return value if plain else json.dumps(value, ensure_ascii=not value.isprintable())


def _clock_time(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
