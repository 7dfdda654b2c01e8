"""The knobs that schedules declare, and the checks of settings against them."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from pipelined.errors import guess
from pipelined.schedules.parts.knobs import Knob, KnobValue, without_defaults
from pipelined.schedules.parts.stage_map import ScheduleError
from pipelined.schedules.registry import SCHEDULES, Schedule, find, is_users, schedule_names
from pipelined.schedules.user.load import load


def own_knobs(schedule: Schedule) -> tuple[Knob[Any], ...]:
    """The knobs that a schedule declares in `KNOBS`; a schedule without any need not have it."""
    return getattr(schedule, "KNOBS", ())


def knobs_of(name: str | None = None) -> tuple[Knob[Any], ...]:
    """The knobs of all schedules of the project, and those of the user's schedule of this name, if it is one.

    A setting has one meaning for all schedules, so that plans of two schedules can be compared and any of them
    written to a file; a schedule refuses a value that it cannot take. Code of the user is imported and run.

    Raises:
        ScheduleError: the user's schedule cannot be read, or declares a knob of this project with another meaning.
    """
    project_knobs = _knobs_of_the_project()
    if name in SCHEDULES or not (name and is_users(name)):
        return tuple(project_knobs.values())
    users_knobs = {knob.name: knob for knob in own_knobs(load(name, schedule_names()))}
    for knob_name in {*users_knobs} & {*project_knobs}:
        if users_knobs[knob_name] != project_knobs[knob_name]:
            fact = f"{name} declares the knob {knob_name}, which is one of this project's"
            raise ScheduleError(f"{fact}; import {knob_name.upper()} from pipelined.schedules, or give it another name")
    return tuple({**project_knobs, **users_knobs}.values())


@cache
def _knobs_of_the_project() -> dict[str, Knob[Any]]:
    return {knob.name: knob for name in schedule_names() for knob in own_knobs(find(name))}


def require_knobs(name: str | None, settings: Mapping[str, Any], keywords: Iterable[str] = ()) -> None:
    """Refuse settings that are no knobs, misspelt arguments among them, or that the schedule does not declare.

    Args:
        name: the schedule; None: it is open, and may be any of the project.
        keywords: the other arguments of that function.
    Raises:
        ScheduleError: an unknown name; the message has the nearest known name, and lists the schedule's. Or as
            `require_declared`.
    """
    knobs = knobs_of(name)
    for setting in settings:
        if setting not in [knob.name for knob in knobs]:
            names = [knob.name for knob in (own_knobs(find(name)) if name else knobs)]
            accepted = f"takes: {', '.join(names)}" if names else "takes no settings"
            fact = f"unknown argument {setting!r} ({name or 'a schedule'} {accepted})"
            raise ScheduleError(f"{fact}; {guess(setting, [*keywords, *names])}correct the name, or leave it out")
    require_declared(name, settings)


def checked_knobs(name: str | None, settings: Mapping[str, Any], keywords: Iterable[str] = ()) -> dict[str, KnobValue]:
    """The settings that are not a knob's default, by name; the arguments and errors are those of `require_knobs`."""
    require_knobs(name, settings, keywords)
    return without_defaults(knobs_of(name), settings)


def require_declared(name: str | None, knobs: Mapping[str, Any]) -> None:
    """Refuse knobs that a user's schedule does not declare; the project's schedules say which values they take.

    Raises:
        ScheduleError: the message names the schedule and the knobs that it has.
    """
    if name is None or not is_users(name):
        return
    names = [knob.name for knob in own_knobs(find(name))]
    for knob in knobs_of(name):
        if knob.name not in names and (value := knobs.get(knob.name, knob.default)) != knob.default:
            declaration = f"its knobs: {', '.join(names)}" if names else "it has none"
            fact = f"{name} does not declare the knob {knob.name} ({knob.name}: {value}, {declaration})"
            raise ScheduleError(f"{fact}; leave `{knob.name}=` out, or add {knob.name.upper()} to its KNOBS")
