"""Finding a schedule by its name. The rule: whoever adds a file has added a schedule, there is no list to edit.

Knows files and modules; must not know what any schedule does.
"""

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Protocol

from pipelined.schedules._contract import Layout, ScheduleError, Shape, Worker


class Schedule(Protocol):
    """What a schedule file gives."""

    __name__: str

    def layout(self, shape: Shape) -> Layout:
        """Who holds which stage of which pipe; raises ScheduleError for a shape the schedule cannot take."""
        ...

    async def schedule(self, worker: Worker) -> None:
        """What one worker does in one step."""
        ...


def known() -> list[str]:
    """The names of the schedules that come with the project, sorted."""
    folder = str(Path(__file__).parent)
    return sorted(module.name for module in pkgutil.iter_modules([folder]) if not module.name.startswith("_"))


def find(name: str) -> Schedule:
    """The schedule of this name: one of `known()`, a dotted module of the user's, or the path of a .py file.

    Raises:
        ScheduleError: there is no such schedule, it cannot be imported, or it is not one.
    """
    if name in known():
        return importlib.import_module(f"pipelined.schedules.{name}")
    if name.endswith(".py"):
        return _complete(_guarded(name, lambda: _from_file(Path(name))))
    if "." in name:
        return _complete(_guarded(name, lambda: importlib.import_module(name)))
    choice = f"known: {', '.join(known())}, or a dotted module name, or the path of a .py file"
    raise ScheduleError(f"unknown schedule {name!r}; {choice}")


def _from_file(path: Path) -> ModuleType:
    name = f"<{path.resolve()}>"  # no import statement can reach it, so it hides nothing
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def _guarded(name: str, load: Callable[[], ModuleType]) -> ModuleType:
    """Load a user's module; whatever its code raises becomes one message."""
    try:
        return load()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ScheduleError(f"cannot import the schedule {name!r} ({reason}); known: {', '.join(known())}") from error


def _complete(module: ModuleType) -> Schedule:
    missing = [part for part in ("layout", "schedule") if not callable(getattr(module, part, None))]
    if missing:
        need = "layout(shape) and async schedule(worker)"
        raise ScheduleError(f"{module.__name__} is no schedule (it lacks {', '.join(missing)}); it must define {need}")
    return module
