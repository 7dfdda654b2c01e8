"""The knobs that schedules declare, and the refusal of a setting that is none."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from pipelined.errors import guess
from pipelined.schedules.parts.knobs import Knob
from pipelined.schedules.parts.stage_map import ScheduleError
from pipelined.schedules.registry import SCHEDULES, Schedule, find, is_users, known
from pipelined.schedules.user.load import load


def declared(schedule: Schedule) -> tuple[Knob[Any], ...]:
    """The knobs that a schedule declares in `KNOBS`; a schedule without any need not have it."""
    return getattr(schedule, "KNOBS", ())


def knobs_of(name: str | None = None) -> tuple[Knob[Any], ...]:
    """The knobs of all schedules of the project, and those of the user's schedule of this name, if it is one.

    A setting has one meaning for all schedules, so that plans of two schedules can be compared and any of them
    written to a file; a schedule refuses a value that it cannot take. Code of the user is imported and run.

    Raises:
        ScheduleError: the user's schedule cannot be read, or declares a knob of this project with another meaning.
    """
    knobs = _knobs_of_the_project()
    if name in SCHEDULES or not (name and is_users(name)):
        return tuple(knobs.values())
    users = {knob.name: knob for knob in declared(load(name, known()))}
    for taken in {*users} & {*knobs}:
        if users[taken] != knobs[taken]:
            fact = f"{name} declares the knob {taken}, which is one of this project's"
            raise ScheduleError(f"{fact}; import {taken.upper()} from pipelined.schedules, or give it another name")
    return tuple({**knobs, **users}.values())


@cache
def _knobs_of_the_project() -> dict[str, Knob[Any]]:
    return {knob.name: knob for name in known() for knob in declared(find(name))}


def require_knobs(name: str | None, given: Mapping[str, Any], keywords: Iterable[str] = ()) -> None:
    """Refuse settings that are no knobs, or that the schedule does not declare; a misspelt argument is one, too.

    Args:
        name: the schedule; None: it is open, and may be any of the project.
        keywords: the other arguments of that function.
    Raises:
        ScheduleError: an unknown name; the message has the nearest of all, and lists those of the schedule. Or as
            `require_declared`.
    """
    knobs = knobs_of(name)
    for setting in given:
        if setting not in [knob.name for knob in knobs]:
            taken = [knob.name for knob in (declared(find(name)) if name else knobs)]
            takes = f"takes: {', '.join(taken)}" if taken else "takes no settings"
            fact = f"unknown argument {setting!r} ({name or 'a schedule'} {takes})"
            raise ScheduleError(f"{fact}; {guess(setting, [*keywords, *taken])}correct the name, or leave it out")
    require_declared(name, given)


def require_declared(name: str | None, knobs: Mapping[str, Any]) -> None:
    """Refuse knobs that a user's schedule does not declare; the project's schedules say which values they take.

    Raises:
        ScheduleError: the message names the schedule and the knobs that it has.
    """
    if name is None or not is_users(name):
        return
    names = [knob.name for knob in declared(find(name))]
    for knob in knobs_of(name):
        if knob.name not in names and (value := knobs.get(knob.name, knob.default)) != knob.default:
            has = f"its knobs: {', '.join(names)}" if names else "it has none"
            fact = f"{name} does not declare the knob {knob.name} ({knob.name}: {value}, {has})"
            raise ScheduleError(f"{fact}; leave `{knob.name}=` out, or add {knob.name.upper()} to its KNOBS")
