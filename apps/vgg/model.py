"""VGG as a row of layers of `pipelined.Sequential`, trained on handwritten digits."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from torch import nn

from apps.common.flags.run_flags import RunFlags
from apps.common.images.digits import Images, digits, logistic_regression
from apps.common.images.image_training import ImageTraining
from apps.vgg.presets import KERNEL, POOL, VGGConfig
from pipelined.programs.plan import Plan

L = TypeVar("L", nn.Conv2d, nn.Linear)
Builders = dict[str, Callable[[], nn.Module]]


class VGGTraining(ImageTraining):
    """VGG's layers on the digits.

    Args:
        sizes: of the model; the others are those of `ImageTraining`.
    """

    def __init__(self, sizes: VGGConfig, config: RunFlags, plan: Plan):
        super().__init__(config, plan, (sizes.colours, sizes.side))
        self._sizes = sizes

    def builders(self) -> Builders:
        return builders(self._sizes)

    def images(self) -> tuple[Images, Images]:
        return digits()

    def baselines(self) -> dict[str, int]:
        return {"logistic_regression": logistic_regression(*digits())}


def builders(config: VGGConfig) -> Builders:
    """What builds each layer, by name, in order.

    Shapes: (B, colours, side, side) to (B, classes).
    """
    found: Builders = {}
    for block in range(len(config.channels)):
        for name, inputs, outputs, _ in config.block(block):
            found[name] = partial(_convolution, inputs, outputs)
            found[name.replace("conv", "relu")] = nn.ReLU
        found[f"pool{block + 1}"] = partial(nn.MaxPool2d, POOL)
    found["flatten"] = nn.Flatten
    *hidden, last = config.layers
    for name, inputs, outputs in hidden:
        found[name] = partial(_dense, inputs, outputs)
        found[name.replace("fc", "relu")] = nn.ReLU
        found[name.replace("fc", "drop")] = partial(nn.Dropout, config.dropout)
    return found | {last.name: partial(_dense, last.inputs, last.outputs)}


def _convolution(inputs: int, outputs: int) -> nn.Conv2d:
    return _initialised(nn.Conv2d(inputs, outputs, KERNEL, padding=KERNEL // 2))


def _dense(inputs: int, outputs: int) -> nn.Linear:
    return _initialised(nn.Linear(inputs, outputs))


def _initialised(layer: L) -> L:
    """Weights of variance 2 / inputs, so that ReLUs keep the variance through all layers; biases of 0.

    Source: He et al., Delving Deep into Rectifiers, section 2.2.
    """
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
