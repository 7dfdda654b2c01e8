"""VGG13's sizes: the published ones, and those cut down for handwritten digits. No torch.

Source: Simonyan and Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition, table 1, B.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from pipelined.errors import UsageError

KERNEL = 3
"""Side of a convolution's kernel; around an image one place is padded, so that its side stays."""
POOL = 2
"""A pool halves the side."""


class Convolution(NamedTuple):
    """One convolution.

    Args:
        name: as `conv2_1`, the first of the second block.
        inputs, outputs: channels.
        side: places of an image along each side, before and after it.
    """

    name: str
    inputs: int
    outputs: int
    side: int


class Dense(NamedTuple):
    """One dense layer."""

    name: str
    inputs: int
    outputs: int


@dataclass(frozen=True, kw_only=True)
class VGGConfig:
    """The sizes of a VGG with two convolutions a block.

    Args:
        side: pixels along each side of an image.
        colours: channels of an image.
        channels: of each block; each block ends in a pool.
        dense: widths of the hidden dense layers.
        classes: how many classes the images have.
        dropout: probability in training that an output of a hidden dense layer is dropped.
    """

    side: int
    colours: int
    channels: tuple[int, ...]
    dense: tuple[int, ...]
    classes: int
    dropout: float

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout must be from 0 to below 1 (it is {self.dropout:g})")

    @property
    def convolutions(self) -> list[Convolution]:
        return [convolution for block in range(len(self.channels)) for convolution in self.block(block)]

    def block(self, number: int) -> Iterator[Convolution]:
        """The two convolutions of a block, counted from 0."""
        inputs = (self.colours, *self.channels)[number]
        width = self.channels[number]
        side = self.side // POOL**number
        yield Convolution(f"conv{number + 1}_1", inputs, width, side)
        yield Convolution(f"conv{number + 1}_2", width, width, side)

    @property
    def layers(self) -> list[Dense]:
        """The dense layers; the first is numbered after the blocks, as fc6 after five of them."""
        flat = self.channels[-1] * (self.side // POOL ** len(self.channels)) ** 2
        widths = (flat, *self.dense, self.classes)
        first_number = len(self.channels) + 1
        return [Dense(f"fc{number}", *ends) for number, ends in enumerate(pairwise(widths), first_number)]

    @property
    def depth(self) -> int:
        """Layers in which stages can be cut, activations and pools included."""
        return 2 * len(self.convolutions) + len(self.channels) + 1 + 3 * len(self.dense) + 1

    @property
    def parameters(self) -> int:
        """All weights and biases."""
        kernels = sum((KERNEL**2 * convolution.inputs + 1) * convolution.outputs for convolution in self.convolutions)
        return kernels + sum((layer.inputs + 1) * layer.outputs for layer in self.layers)

    def identity(self) -> dict[str, Any]:
        """What a plan and a job must have in common."""
        return asdict(self)


PRESETS = {
    "digits": VGGConfig(side=32, colours=1, channels=(16, 32, 64, 64, 64), dense=(128, 128), classes=10, dropout=0.1),
    "vgg13": VGGConfig(
        side=224, colours=3, channels=(64, 128, 256, 512, 512), dense=(4096, 4096), classes=1000, dropout=0.5
    ),
}
