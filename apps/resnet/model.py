"""ResNet as a row of layers of `pipelined.Sequential`, trained on images.

A skip lies inside a block, which is one layer; so a cut sends one tensor. Names below a layer are torchvision's.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from apps.common.flags.run_flags import RunFlags
from apps.common.images.digits import Images
from apps.common.images.image_training import Builders, ImageTraining
from apps.resnet.presets import Block, ResNetConfig, has_projection
from pipelined.programs.plan import Plan

Source = Callable[[], tuple[Images, Images]]
"""Reads the images to train on, and those that are held out."""


class ResNetTraining(ImageTraining):
    """ResNet's layers on images.

    Args:
        sizes: the model's.
        source: reads the images.
        config, plan: see `ImageTraining`.
    """

    def __init__(self, sizes: ResNetConfig, config: RunFlags, plan: Plan, source: Source):
        super().__init__(config, plan, (sizes.colours, sizes.side))
        self._sizes, self._source = sizes, source

    def builders(self) -> Builders:
        return builders(self._sizes)

    def images(self) -> tuple[Images, Images]:
        return self._source()


def builders(config: ResNetConfig) -> Builders:
    """What builds each layer, by name, in order.

    Shapes: (B, colours, side, side) to (B, classes).
    """
    kind = Bottleneck if config.bottleneck else BasicBlock
    layers: dict[str, Callable[[], nn.Module]] = {"stem": partial(Stem, config)}
    layers |= {block.name: partial(kind, block) for block in config.rows}
    return layers | {"pool": Pool, "fc": partial(nn.Linear, config.rows[-1].outputs, config.classes)}


class Stem(nn.Module):
    """The first convolution: 3 x 3 for small images, else 7 x 7 and a pool, which halve the side twice."""

    def __init__(self, config: ResNetConfig):
        super().__init__()
        kernel, stride = (3, 1) if config.small else (7, 2)
        self.conv1 = _convolution(config.colours, config.channels[0], kernel, stride)
        self.bn1 = nn.BatchNorm2d(config.channels[0])
        self.maxpool = nn.Identity() if config.small else nn.MaxPool2d(3, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.maxpool(functional.relu(self.bn1(self.conv1(x))))


class BasicBlock(nn.Module):
    """Two convolutions around a residual."""

    def __init__(self, block: Block):
        super().__init__()
        self.conv1 = _convolution(block.inputs, block.channels, 3, block.stride)
        self.bn1 = nn.BatchNorm2d(block.channels)
        self.conv2 = _convolution(block.channels, block.outputs, 3)
        self.bn2 = nn.BatchNorm2d(block.outputs)
        self.downsample = _shortcut(block)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class Bottleneck(nn.Module):
    """Three convolutions around a residual; the one in the middle has the stride, as torchvision's has."""

    def __init__(self, block: Block):
        super().__init__()
        self.conv1 = _convolution(block.inputs, block.channels, 1)
        self.bn1 = nn.BatchNorm2d(block.channels)
        self.conv2 = _convolution(block.channels, block.channels, 3, block.stride)
        self.bn2 = nn.BatchNorm2d(block.channels)
        self.conv3 = _convolution(block.channels, block.outputs, 1)
        self.bn3 = nn.BatchNorm2d(block.outputs)
        self.downsample = _shortcut(block)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        y = functional.relu(self.bn2(self.conv2(y)))
        return functional.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class Pool(nn.Module):
    """The mean of each channel over all places: (B, channels, side, side) to (B, channels)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))


def _shortcut(block: Block) -> nn.Module:
    if not has_projection(block):
        return nn.Identity()
    return nn.Sequential(_convolution(block.inputs, block.outputs, 1, block.stride), nn.BatchNorm2d(block.outputs))


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    if layer.weight.device.type != "meta":  # drawing there would import torch's compiler
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer
