"""Presets: the sizes of known models by name. No torch."""

from collections.abc import Mapping
from typing import TypeVar

from pipelined.errors import UsageError, guess

Sizes = TypeVar("Sizes")


def find_preset(name: str, presets: Mapping[str, Sizes]) -> Sizes:
    """Look a preset up by name.

    Raises:
        UsageError: there is no preset of that name; with the nearest.
    """
    if name not in presets:
        remedy = f"{guess(name, presets)}choose one of {', '.join(presets)}"
        raise UsageError(f"no preset is called {name!r}; {remedy}")
    return presets[name]
