"""The help of `train` and `plan` for the arguments that they share with `Trainer`: written once, in its docstring."""

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

from pipelined.api.trainer import Trainer

Call = TypeVar("Call", bound=Callable[..., Any])
ENTRY = re.compile(r"^ {4}([a-z_, ]+): .*(?:\n {8}.*)*\n", re.MULTILINE)
"""The lines of one argument, or of several with commas between, in a docstring without its indent."""
ARGUMENTS = re.compile(r"^Args:\n(?: {4}.*\n)*", re.MULTILINE)


def with_help_of_trainer(call: Call) -> Call:
    """Add the lines of `Trainer` for each argument that a function takes and does not describe itself.

    The lines stand in the order of the arguments.
    """
    if call.__doc__ and Trainer.__doc__:  # python -OO drops both
        text = inspect.cleandoc(call.__doc__)
        lines = _entries(inspect.cleandoc(Trainer.__doc__)) | _entries(text)
        entries = dict.fromkeys(lines[name] for name in inspect.signature(call).parameters)
        call.__doc__ = ARGUMENTS.sub(lambda match: "".join(["Args:\n", *entries]), text, count=1)
    return call


def _entries(text: str) -> dict[str, str]:
    """The lines of each argument by its name."""
    return {name.strip(): match[0] for match in ENTRY.finditer(text) for name in match[1].split(",")}
