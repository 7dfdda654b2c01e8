"""`python -m apps.resnet`: ResNet on CIFAR-10's files, a folder of pictures, or digits."""

from functools import partial
from typing import Any


def __getattr__(name: str) -> Any:
    """`subject`, which `python -m pipelined plan` requests from a program. Imported late."""
    if name == "subject":
        from apps.common.rows.program import subject
        from apps.resnet.__main__ import ResNetFlags

        return partial(subject, "apps.resnet", ResNetFlags())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
