"""Training that survives its machines: the rules that its roles share, and its public face."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelined.api.swarm.run import local, serve, train

__all__ = ["local", "serve", "train"]


def __getattr__(name: str) -> Any:
    """A name of the face imports torch at its first use, by a string: `pipelined.api` is above this package."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    value = globals()[name] = getattr(import_module("pipelined.api.swarm.run"), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
