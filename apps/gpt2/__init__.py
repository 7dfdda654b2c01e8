"""`python -m apps.gpt2`: its flags, its plan, and the training of one rank."""

from typing import Any


def __getattr__(name: str) -> Any:
    """`subject`, which `python -m pipelined plan` requests from a program. Imported late: `__main__` is a program."""
    if name == "subject":
        from apps.gpt2.__main__ import subject

        return subject
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
