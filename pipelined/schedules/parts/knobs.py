"""Knobs: settings of a schedule beyond depth and microbatches. A schedule names its own in `KNOBS`.

A knob is declared once. It becomes a flag of every program, a key of plan files and of JSON output, and a choice that
the planner tries and names in its tables (see `registry.knobs_of`). The knobs here belong to several schedules.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Generic, Protocol, TypeVar

from pipelined.errors import got
from pipelined.schedules.parts.stage_map import ScheduleError, Shape

KnobValue = int | str
V = TypeVar("V", int, str)
DECLARATION = "Knob(NAME, DEFAULT, HELP)"
"""The form of a knob, as remedies show it."""


class HasKnobs(Protocol):
    """What has knobs set: a shape, a plan, a set of flags."""

    @property
    def knobs(self) -> Mapping[str, KnobValue]: ...


@dataclass(frozen=True)
class Knob(Generic[V]):
    """A setting of a schedule.

    Args:
        name: a Python name; its flag has dashes instead of underscores.
        default: the value that applies unless another one is set; all values are of its type.
        help: what it sets, in a line of `--help`.
        least: the smallest value, if it is a number.
        choices: the possible values; empty if there are more than can be named.
        tries: from depth and microbatches to the values, besides the default, that the planner tries.
    Raises:
        ScheduleError: the name is not a Python name, or the default is neither a whole number nor a text.
    """

    name: str
    default: V
    help: str
    least: int = 0
    choices: tuple[V, ...] = ()
    tries: Callable[[int, int], Iterable[V]] = field(default=lambda depth, microbatches: (), repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise ScheduleError(f"the name of a knob must be a Python name {got(self.name)}; declare {DECLARATION}")
        if type(self.default) not in (int, str):
            fact = f"the default of the knob {self.name} must be an int or a str {got(self.default)}"
            raise ScheduleError(f"{fact}; declare {DECLARATION}")

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return "--" + self.name.replace("_", "-")

    def of(self, holder: HasKnobs) -> V:
        """The value in a shape or a plan; raises ScheduleError as `check`."""
        return self.check(holder.knobs.get(self.name, self.default))

    def check(self, value: Any) -> V:
        """The value, checked. Where values are text, a number becomes text.

        Raises:
            ScheduleError: the knob cannot have this value.
        """
        if isinstance(value, Integral) and not isinstance(value, bool):
            value = str(value) if isinstance(self.default, str) else int(value)
        if type(value) is not type(self.default):
            raise ScheduleError(f"{self.name} is {value!r}; give a value of type {type(self.default).__name__}")
        if self.choices and value not in self.choices:
            raise ScheduleError(f"unknown {self.name} {value!r}; known: {', '.join(map(str, self.choices))}")
        if isinstance(value, int) and value < self.least:
            raise ScheduleError(f"{self.name} must be at least {self.least} (it is {value})")
        return value

    def label(self, value: V) -> str:
        """A value in a table: a number with the knob's name, a word alone."""
        return f"{value} {self.name}" if isinstance(value, int) else value


def without_defaults(knobs: Iterable[Knob[Any]], values: Mapping[str, Any]) -> dict[str, KnobValue]:
    """The values that are not the default, by name.

    Args:
        values: may lack a knob, which then has its default.
    Raises:
        ScheduleError: a knob cannot have its value.
    """
    checked = {knob.name: (knob, knob.check(values.get(knob.name, knob.default))) for knob in knobs}
    return {name: value for name, (knob, value) in checked.items() if value != knob.default}


def _replicas(depth: int, microbatches: int) -> Iterable[int]:
    return (2 * each_way for each_way in range(2, depth // 2 + 1) if depth // 2 % each_way == 0)


def _scales(depth: int, microbatches: int) -> Iterable[str]:
    doubled = ("forward-doubling",) if microbatches >= 2 * depth else ()  # with fewer nothing is doubled
    return (*doubled, "backward-halving")


PIPES = Knob(
    "pipes",
    0,
    "pipelines over the same workers, each with its own copy of the model; 0: the schedule's own number",
    tries=_replicas,
)
CHUNKS = Knob(
    "chunks",
    1,
    "stages of a pipe on each worker",
    least=1,
    tries=lambda depth, microbatches: (chunks for chunks in (2, 4) if depth % chunks == 0),
)
SCALE = Knob(
    "scale",
    "direct",
    "how chimera takes more than D microbatches: direct, forward-doubling or backward-halving",
    choices=("direct", "forward-doubling", "backward-halving"),
    tries=_scales,
)
MAX_AHEAD = 4096
"""The most microbatches alive on a stage. Without a limit, proving a plan from a file could take hours."""
AHEAD = Knob(
    "ahead",
    "",
    "microbatches alive without a flush: K on the first stage and in proportion on later ones, or K0,K1,... by stage; "
    "default: D-s on stage s",
)


def alive_limits(shape: Shape) -> tuple[int, ...]:
    """The most microbatches alive on each stage, as `AHEAD` sets it; empty where it is open.

    K alone means ceil(K (D - s) / D) on stage s of D.

    Raises:
        ScheduleError: no whole numbers above 0, or not one number, or one for each stage.
    """
    text = AHEAD.of(shape)
    if not text:
        return ()
    numbers = [int(part) if re.fullmatch("[0-9]{1,8}", part) else 0 for part in text.split(",")]
    if not 1 <= min(numbers) <= max(numbers) <= MAX_AHEAD or len(numbers) not in (1, shape.depth):
        fact = f"{AHEAD.flag} {text} is no number of microbatches alive (stages: {shape.depth})"
        raise ScheduleError(f"{fact}; give K from 1 to {MAX_AHEAD}, or {shape.depth} such numbers with commas between")
    if len(numbers) == shape.depth:
        return tuple(numbers)
    return tuple(-(-numbers[0] * (shape.depth - stage) // shape.depth) for stage in range(shape.depth))
