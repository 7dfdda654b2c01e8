"""ResNet's sizes: the published ones, and one for handwritten digits. No torch.

Source: He et al., Deep Residual Learning for Image Recognition, table 1; on small images its section 4.2.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from pipelined.errors import UsageError

SMALL = 64
"""Images up to this side get a stem that keeps their size."""
EXPANSION = 4
"""A bottleneck's outputs over its inner channels."""


class Block(NamedTuple):
    """One block.

    Args:
        name: as `layer2_0`, the first of the second group.
        inputs, channels, outputs: its input channels, those inside it, and its output channels.
        stride: 2 where the side halves.
    """

    name: str
    inputs: int
    channels: int
    outputs: int
    stride: int


@dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """The sizes of a ResNet.

    Args:
        blocks: how many blocks each group has.
        channels: inside the blocks of each group.
        bottleneck: whether a block is three convolutions (1, 3, 1 wide) instead of two (3, 3).
        side: pixels along each side of an image.
        colours: channels of an image.
        classes: how many classes the images have.
    """

    blocks: tuple[int, ...]
    channels: tuple[int, ...]
    bottleneck: bool
    side: int = 224
    colours: int = 3
    classes: int = 1000

    def __post_init__(self) -> None:
        if self.side < (least := 2 ** (len(self.blocks) - 1)):
            raise UsageError(
                f"images are too small for {len(self.blocks)} groups of blocks (--side {self.side})"
                f"; take --side {least} or more"
            )

    @property
    def small(self) -> bool:
        """Whether the stem keeps the size of an image."""
        return self.side <= SMALL

    @property
    def rows(self) -> list[Block]:
        return list(self._rows())

    def _rows(self) -> Iterator[Block]:
        inputs = self.channels[0]
        for group, (count, channels) in enumerate(zip(self.blocks, self.channels, strict=True)):
            outputs = channels * (EXPANSION if self.bottleneck else 1)
            for number in range(count):
                stride = 2 if group and not number else 1
                yield Block(f"layer{group + 1}_{number}", inputs, channels, outputs, stride)
                inputs = outputs

    @property
    def depth(self) -> int:
        """Layers in which stages can be cut: stem, blocks, pool and head."""
        return 1 + len(self.rows) + 2

    @property
    def parameters(self) -> int:
        """All kernels, weights and biases."""
        stem = (9 if self.small else 49) * self.colours * self.channels[0] + 2 * self.channels[0]
        return stem + sum(map(self._block_parameters, self.rows)) + (self.rows[-1].outputs + 1) * self.classes

    def _block_parameters(self, block: Block) -> int:
        c = block.channels
        ends = block.inputs + block.outputs
        bottleneck = 9 * c**2 + ends * c + 4 * c + 2 * block.outputs
        basic = 9 * block.inputs * c + 9 * c**2 + 4 * c
        shortcut = block.inputs * block.outputs + 2 * block.outputs
        return (bottleneck if self.bottleneck else basic) + (shortcut if has_projection(block) else 0)

    def to_dict(self) -> dict[str, Any]:
        """The sizes as JSON can hold them."""
        return asdict(self)


def has_projection(block: Block) -> bool:
    """Whether the residual needs a convolution, as side or channels change."""
    return block.stride > 1 or block.inputs != block.outputs


PRESETS = {
    "digits": ResNetConfig(blocks=(1, 1, 1), channels=(16, 32, 64), bottleneck=False, side=16, colours=1, classes=10),
    "resnet18": ResNetConfig(blocks=(2, 2, 2, 2), channels=(64, 128, 256, 512), bottleneck=False),
    "resnet34": ResNetConfig(blocks=(3, 4, 6, 3), channels=(64, 128, 256, 512), bottleneck=False),
    "resnet50": ResNetConfig(blocks=(3, 4, 6, 3), channels=(64, 128, 256, 512), bottleneck=True),
}
