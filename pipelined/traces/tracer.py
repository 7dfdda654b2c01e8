"""The tracer: it records the events of one rank, with their times, in packed arrays.

An event costs two clock readings and 52 bytes, so that recording does not disturb the recorded run.
"""

from array import array
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

COMPUTE = ("forward", "backward", "step")
COMMUNICATION = ("send", "receive", "all_reduce")
CATEGORIES = (*COMPUTE, *COMMUNICATION, "idle")
NOWHERE = -1
_NOTHING = nullcontext()


@dataclass(frozen=True)
class Events:
    """The events of one rank, packed so that one message carries them: `kinds` as its note, the rest as its arrays.

    Shapes: kind (E,) int32; times (E, 2) float64, start and end in seconds of the rank's own clock;
    coordinates (E, 4) int64, which are step, stage, microbatch and pipe, `NOWHERE` for a field that does not apply.

    Args:
        kinds: (category, name) pairs; `kind` holds indices into them.
    """

    kinds: list[tuple[str, str]]
    kind: np.ndarray
    times: np.ndarray
    coordinates: np.ndarray

    def __len__(self) -> int:
        return len(self.kind)

    def pack(self) -> list[Any]:
        """The events as lists and bytes, for msgpack."""
        return [list(map(list, self.kinds)), self.kind.tobytes(), self.times.tobytes(), self.coordinates.tobytes()]

    @classmethod
    def unpack(cls, packed: list[Any]) -> "Events":
        """The events from the result of `pack`."""
        kinds, kind, times, coordinates = packed
        times, coordinates = np.frombuffer(times, np.float64), np.frombuffer(coordinates, np.int64)
        kinds = [(str(category), str(name)) for category, name in kinds]
        return cls(kinds, np.frombuffer(kind, np.int32), times.reshape(-1, 2), coordinates.reshape(-1, 4))


class Tracer:
    """Records the spans of one rank.

    Args:
        now: the clock, in seconds; only differences are used.
    """

    def __init__(self, now: Callable[[], float]):
        self.now = now
        self._kinds: dict[tuple[str, str], int] = {}
        self._kind, self._times, self._coordinates = array("i"), array("d"), array("q")

    def span(
        self,
        category: str,
        name: str,
        *,
        step: int = NOWHERE,
        stage: int = NOWHERE,
        microbatch: int = NOWHERE,
        pipe: int = NOWHERE,
    ) -> AbstractContextManager[object]:
        """Record the time of the `with` block, awaits included, even if it raises."""
        return _Span(self, category, name, (step, stage, microbatch, pipe))

    def record(
        self,
        category: str,
        name: str,
        start: float,
        end: float,
        coordinates: tuple[int, int, int, int] = (NOWHERE,) * 4,
    ) -> None:
        """Record a span that the caller has timed.

        Args:
            category: one of `CATEGORIES`.
            coordinates: step, stage, microbatch, pipe.
        Raises:
            ValueError: no such category; nothing is recorded.
        """
        kind = self._kinds.get((category, name))
        self._kind.append(self._new_kind(category, name) if kind is None else kind)
        self._times.extend((start, end))
        self._coordinates.extend(coordinates)

    def abandon(self, step: int) -> None:
        """Let the spans of a step so far belong to no step: their work was in vain, and the step begins anew."""
        steps = np.frombuffer(self._coordinates, np.int64).reshape(-1, 4)[:, 0]
        steps[steps == step] = NOWHERE

    def events(self) -> Events:
        """A copy of all events recorded so far."""
        times, coordinates = np.array(self._times, np.float64), np.array(self._coordinates, np.int64)
        return Events(
            list(self._kinds), np.array(self._kind, np.int32), times.reshape(-1, 2), coordinates.reshape(-1, 4)
        )

    def _new_kind(self, category: str, name: str) -> int:
        if category not in CATEGORIES:
            raise ValueError(f"unknown trace category {category!r}; known: {', '.join(CATEGORIES)}")
        return self._kinds.setdefault((category, name), len(self._kinds))


class NullTracer(Tracer):
    """Records nothing and reads no clock; for runs without a trace."""

    def __init__(self) -> None:
        super().__init__(float)

    def span(self, category: str, name: str, **coordinates: int) -> AbstractContextManager[object]:
        return _NOTHING

    def record(self, category: str, name: str, start: float, end: float, coordinates: object = None) -> None:
        return None


class _Span:
    __slots__ = ("_category", "_coordinates", "_name", "_start", "_tracer")

    def __init__(self, tracer: Tracer, category: str, name: str, coordinates: tuple[int, int, int, int]):
        self._tracer = tracer
        self._category = category
        self._name = name
        self._coordinates = coordinates

    def __enter__(self) -> None:
        self._start = self._tracer.now()

    def __exit__(self, *exc: object) -> None:
        self._tracer.record(self._category, self._name, self._start, self._tracer.now(), self._coordinates)
