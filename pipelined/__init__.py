"""The public face of the runtime: `import pipelined as pp`. A name that needs torch imports it at its first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelined.api.sequential import Sequential
    from pipelined.api.train import train
    from pipelined.api.whole_run import Trained
    from pipelined.errors import UsageError
    from pipelined.programs.plan import Plan
    from pipelined.training.keyed_random import layer_seed

__version__ = "0.1.0"
__all__ = ["Plan", "Sequential", "Trained", "UsageError", "__version__", "layer_seed", "train"]

_HOMES = {
    "Plan": "pipelined.programs.plan",
    "Sequential": "pipelined.api.sequential",
    "Trained": "pipelined.api.whole_run",
    "UsageError": "pipelined.errors",
    "layer_seed": "pipelined.training.keyed_random",
    "train": "pipelined.api.train",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
