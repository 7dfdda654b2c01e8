"""ResNet on images: the program `python -m apps.resnet`, from its flags to the images that it gets right."""

from functools import partial
from typing import Any


def __getattr__(name: str) -> Any:
    """`subject`, which `python -m pipelined plan` requests from a program. Imported late."""
    if name == "subject":
        from apps.resnet.__main__ import ResNetFlags
        from apps.rows.planned import subject

        return partial(subject, "apps.resnet", ResNetFlags())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
