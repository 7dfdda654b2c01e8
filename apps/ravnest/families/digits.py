"""`--preset digits`: a residual network on scikit-learn's handwritten digits, its sizes and its images. No torch.

The stem's output goes to the first block and, past all blocks, to the head: a skip over every stage between the two.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from apps.common.images.digits import Images, digits, require_scikit_learn
from apps.resnet.presets import PRESETS, Block, ResNetConfig, has_projection
from pipelined.ravnest.planning.stage_sizes import NUMBER_BYTES, LayerSize

DIGITS = "digits"
NORM_NUMBERS = 4
"""Numbers of each channel of a norm that a round averages: weight, bias, mean and variance."""


@dataclass(frozen=True)
class DigitsConfig(ResNetConfig):
    """The sizes of the residual network: those of ResNet, with a head that reads the stem, too."""

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must share to fit this model."""
        return {"model": DIGITS, "blocks": [*self.blocks], "channels": [*self.channels], "side": self.side}

    def layer_sizes(self, rows: int) -> Iterator[LayerSize]:
        """The stem, the blocks and the head, for one microbatch; a convolution and the norm after it keep their inputs.

        Args:
            rows: images of a microbatch.
        """
        side = self.side
        width = self.channels[0]
        image = self.colours * side**2
        stem = width * side**2
        kernel = 9 * self.colours * width
        yield replace(_size(rows, kernel + NORM_NUMBERS * width, 2 * stem, image, kernel * side**2), waits=False)
        input_numbers = stem
        for block in self.rows:
            side = -(-side // block.stride)
            output = block.outputs * side**2
            kept_numbers = (4 + has_projection(block)) * output
            yield _size(rows, _numbers(block), kept_numbers, input_numbers, _kernels(block) * side**2)
            input_numbers = output
        inputs = self.rows[-1].outputs + width
        head = _size(rows, (inputs + 1) * self.classes, inputs + self.classes, input_numbers, inputs * self.classes)
        yield replace(head, reads=((0, NUMBER_BYTES * rows * stem),))


DIGITS_MODEL = DigitsConfig(**vars(PRESETS["digits"]))


@dataclass(frozen=True)
class Digits:
    """The images to train on, and those that are held out.

    Args:
        digest: of all of them.
    """

    train: Images
    held_out: Images
    digest: str

    @classmethod
    def read(cls) -> "Digits":
        """Read them. Raises UsageError: scikit-learn is not installed."""
        require_scikit_learn()
        train, held_out = digits()
        hasher = hashlib.blake2b(digest_size=32)
        for images in (train, held_out):
            hasher.update(images.images.tobytes() + images.classes.tobytes())
        return cls(train, held_out, hasher.hexdigest())


def _size(rows: int, parameters: int, kept_numbers: int, input_numbers: int, products: int) -> LayerSize:
    """A layer, from what it keeps, what enters it and its products for one image; a backward works twice as much."""
    sizes = parameters, NUMBER_BYTES * rows * kept_numbers, NUMBER_BYTES * rows * input_numbers
    return LayerSize(*sizes, 6.0 * rows * products, keeps_input=True, waits=True)


def _kernels(block: Block) -> int:
    shortcut = block.inputs * block.outputs if has_projection(block) else 0
    return 9 * block.inputs * block.channels + 9 * block.channels * block.outputs + shortcut


def _numbers(block: Block) -> int:
    norms = block.channels + block.outputs * (1 + has_projection(block))
    return _kernels(block) + NORM_NUMBERS * norms
