"""`python -m apps.vgg`: VGG13's shape on handwritten digits, a program of the public API."""

from typing import Any


def __getattr__(name: str) -> Any:
    """`subject`, which `python -m pipelined plan` and `shard` request from a program. Imported late."""
    if name == "subject":
        from apps.vgg.__main__ import subject

        return subject
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
