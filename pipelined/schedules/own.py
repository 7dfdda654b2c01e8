"""A schedule of the user's own: a file, or a module on the path. Whatever its code does wrong becomes one message.

Knows files and modules; must not know what any schedule does.
"""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pipelined.schedules.bounded import announced, bounded
from pipelined.schedules.layout import ScheduleError, Shape, StageMap
from pipelined.schedules.worker import Worker


@dataclass(frozen=True)
class OwnSchedule:
    """A user's module, whose `layout` fails in one message and answers a layout.

    Args:
        name: by which it was asked for.
    """

    name: str
    module: ModuleType

    @property
    def __name__(self) -> str:
        return self.name

    def layout(self, shape: Shape) -> StageMap:
        """What the module answers; raises ScheduleError, whatever it raises."""
        with bounded(f"the layout of {self.__name__}", shape.depth * shape.microbatches * shape.steps):
            answer = attempted(f"cannot lay out {self.__name__}", lambda: self.module.layout(shape))
        if not isinstance(answer, StageMap):
            raise ScheduleError(f"the layout of {self.__name__} is no StageMap (but {answer!r}); return StageMap(…)")
        return answer

    def schedule(self, worker: Worker) -> Coroutine[Any, Any, None]:
        """The module's coroutine for a worker."""
        return self.module.schedule(worker)


def load(name: str, others: Sequence[str]) -> OwnSchedule:
    """Import a schedule; an import that takes long is told on stderr, with the line it is at.

    Args:
        name: the path of a .py file, or the name of a module on the path.
        others: names that could have been meant instead.
    Raises:
        ScheduleError: it cannot be imported, or lacks one of the two functions.
    """
    remedy = f"mend that, or name one of the known: {', '.join(others)}"
    with announced(f"importing the schedule {name!r}"):
        module = attempted(f"cannot import the schedule {name!r}", lambda: _imported(name), remedy)
    missing = [part for part in ("layout", "schedule") if not callable(getattr(module, part, None))]
    if missing:
        need = "layout(shape) and async schedule(worker)"
        raise ScheduleError(f"{name} is no schedule (it lacks {', '.join(missing)}); it must define {need}")
    return OwnSchedule(name, module)


def is_module(name: str) -> bool:
    """Whether there is such a module on the path; only what is inside a package is imported to find out."""
    return "." in name or (name.isidentifier() and name != "__main__" and importlib.util.find_spec(name) is not None)


def attempted(what: str, work: Callable[[], Any], remedy: str = "mend that") -> Any:
    """Let a user's code run; whatever it raises becomes one message that says where.

    Args:
        what: the beginning of that message, and `remedy` its end.
    Raises:
        ScheduleError: the code's own, or one that names what it raised instead.
    """
    try:
        return work()
    except ScheduleError:
        raise
    except (Exception, SystemExit) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = "" if isinstance(error, SyntaxError | ImportError | OSError) else f" at {frame.filename}:{frame.lineno}"
        raise ScheduleError(f"{what} ({type(error).__name__}: {error}{where}); {remedy}") from error


def _imported(name: str) -> ModuleType:
    """The module; of a file the same one until the file is changed, so that its classes are what they were."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name).resolve()
    key = f"<{path} {path.stat().st_mtime_ns}>"  # no import statement can reach it, so it hides nothing
    if key in sys.modules:
        return sys.modules[key]
    spec = importlib.util.spec_from_file_location(key, path)
    module = sys.modules[key] = importlib.util.module_from_spec(spec)  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[key]
        raise
    return module
