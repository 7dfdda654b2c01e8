"""Train a ResNet on images: `mpirun -n 4 python -m apps.resnet --data DIR`, or without a launcher.

Its flags are those of any row of layers, and its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps.common.flags.presets import find_preset
from apps.common.flags.run_flags import MINIMUM
from apps.common.images.digits import Images, digits, require_scikit_learn
from apps.common.images.files import CIFAR_SIDE, classes_of, is_cifar, read_images
from apps.common.rows.config import RowFlags, RowTask
from apps.common.rows.program import main
from apps.resnet.presets import PRESETS, ResNetConfig
from pipelined.process.exit import end_process
from pipelined.programs.plan import Plan

if TYPE_CHECKING:
    from apps.resnet.model import ResNetTraining

SIDE = 224
"""Pixels along each side of an image of a folder, by default."""


@dataclass(frozen=True)
class ResNetFlags(RowFlags):
    """Train a ResNet on images, across ranks."""

    preset: str | None = None
    """Model: digits, resnet18, resnet34 or resnet50. Default: resnet18 with --data, else digits."""
    data: Path | None = None
    """Directory with CIFAR-10's binary files, or with a folder of pictures for each class. Default: scikit-learn's
    handwritten digits."""
    side: int | None = None
    """Pixels along each side of an image, to which pictures are scaled. Default: CIFAR-10's 32, 224 of a folder, 16 of
    digits. Up to 64 the stem keeps the size."""

    def least(self) -> Mapping[str, float]:
        return MINIMUM | {"side": 1}

    def task(self) -> "ResNetTask":
        preset = find_preset(self.preset or ("digits" if self.data is None else "resnet18"), PRESETS)
        if self.data is None:
            side = self.side or PRESETS["digits"].side
            return ResNetTask(self, replace(preset, side=side, colours=1, classes=10), digits)
        side = self.side or (CIFAR_SIDE if is_cifar(self.data) else SIDE)
        model = replace(preset, side=side, colours=3, classes=len(classes_of(self.data)))
        return ResNetTask(self, model, partial(read_images, self.data, side))


class ResNetTask(RowTask):
    """A ResNet on images.

    Args:
        config: the flags.
        model: its sizes.
        source: reads the images to train on, and those that are held out.
    """

    config: ResNetFlags

    def __init__(self, config: ResNetFlags, model: ResNetConfig, source: Callable[[], tuple[Images, Images]]):
        self.config = config
        self.model = model
        self.depth = model.depth
        self._source = source

    def describe(self) -> str:
        model, side = self.model, self.model.side
        preset = self.config.preset or ("digits" if self.config.data is None else "resnet18")
        size = f"{model.parameters:,} parameters, images of {side} x {side}, {model.classes} classes"
        return f"model: ResNet {preset}, {size}"

    def sizes(self) -> dict[str, Any]:
        return self.model.to_dict()

    def check(self) -> None:
        if self.config.data is None:
            require_scikit_learn()

    def training(self, plan: Plan) -> "ResNetTraining":
        from apps.resnet.model import ResNetTraining

        return ResNetTraining(self.model, self.config, plan, self._source)


if __name__ == "__main__":
    end_process(main("apps.resnet", ResNetFlags()))
