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
        sizes: the model's.
        config, plan: see `ImageTraining`.
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
    layers: Builders = {}
    for block in range(len(config.channels)):
        for name, inputs, outputs, _ in config.block(block):
            layers[name] = partial(_convolution, inputs, outputs)
            layers[name.replace("conv", "relu")] = nn.ReLU
        layers[f"pool{block + 1}"] = partial(nn.MaxPool2d, POOL)
    layers["flatten"] = nn.Flatten
    *hidden, head = config.layers
    for name, inputs, outputs in hidden:
        layers[name] = partial(_dense, inputs, outputs)
        layers[name.replace("fc", "relu")] = nn.ReLU
        layers[name.replace("fc", "drop")] = partial(nn.Dropout, config.dropout)
    return layers | {head.name: partial(_dense, head.inputs, head.outputs)}


def _convolution(inputs: int, outputs: int) -> nn.Conv2d:
    return _initialise(nn.Conv2d(inputs, outputs, KERNEL, padding=KERNEL // 2))


def _dense(inputs: int, outputs: int) -> nn.Linear:
    return _initialise(nn.Linear(inputs, outputs))


def _initialise(layer: L) -> L:
    """Draw weights of variance 2 / inputs, so that ReLUs keep the variance through all layers, and set biases to 0.

    Source: He et al., Delving Deep into Rectifiers, section 2.2.
    """
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
