"""The residual network on handwritten digits as a row of layers, and how many of those held out it gets right.

Imports torch.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

import pipelined as pp
from apps.common.images.image_training import Builders, Pair, count_right, order, resize
from apps.ravnest.families.digits import DIGITS_MODEL, Digits
from apps.resnet.model import BasicBlock, Pool, Stem
from apps.resnet.presets import Block
from pipelined.training.exchange.parcels import Tree
from pipelined.training.models.batch import convert_floats
from pipelined.training.models.user_model import UserModel, bind

BlockOutputs = tuple[torch.Tensor, torch.Tensor]
"""Outputs of a block and of the stem, each (B, channels, side, side)."""

SHAPE = DIGITS_MODEL.colours, DIGITS_MODEL.side


class DigitsStem(nn.Module):
    """The stem, whose output is also the head's."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Stem(DIGITS_MODEL)

    def forward(self, x: torch.Tensor) -> BlockOutputs:
        y = self.stem(x)
        return y, y


class DigitsBlock(nn.Module):
    """A block that the stem's output passes."""

    def __init__(self, block: Block):
        super().__init__()
        self.block = BasicBlock(block)

    def forward(self, pair: BlockOutputs) -> BlockOutputs:
        x, skip = pair
        return self.block(x), skip


class DigitsHead(nn.Module):
    """The mean of each channel of the last block and of the stem, to (B, classes)."""

    def __init__(self, inputs: int, classes: int):
        super().__init__()
        self.pool = Pool()
        self.fc = nn.Linear(inputs, classes)

    def forward(self, pair: BlockOutputs) -> torch.Tensor:
        return self.fc(torch.cat([self.pool(x) for x in pair], 1))


def builders() -> Builders:
    """What builds each layer, by name, in order."""
    model = DIGITS_MODEL
    layers: dict[str, Callable[[], nn.Module]] = {"stem": DigitsStem}
    layers |= {block.name: partial(DigitsBlock, block) for block in model.rows}
    return layers | {"head": partial(DigitsHead, model.rows[-1].outputs + model.channels[0], model.classes)}


def digits_model(seed: int) -> UserModel:
    """The network with its loss."""
    row = pp.Sequential(builders(), initial="keyed")
    image = torch.empty(1, SHAPE[0], SHAPE[1], SHAPE[1])
    return bind(row, nn.functional.cross_entropy, seed, image)


@dataclass(frozen=True)
class DigitsFeed:
    """The images of each step: each epoch is a permutation of its own.

    Args:
        dtype: of the images.
        batch, microbatch: images of a step, and of a microbatch.
    """

    digits: Digits
    dtype: torch.dtype
    seed: int
    batch: int
    microbatch: int

    def inputs(self, step: int, microbatch: int) -> Tree:
        """See `MicrobatchSource`."""
        return convert_floats(self._pair(step, microbatch)[0], self.dtype)

    def targets(self, step: int, microbatch: int) -> torch.Tensor:
        """See `MicrobatchSource`."""
        return self._pair(step, microbatch)[1]

    def _pair(self, step: int, microbatch: int) -> Pair:
        train = self.digits.train
        index = order(self.seed, step, self.batch, len(train)).split(self.microbatch)[microbatch]
        return resize(train, index, SHAPE)


def export_digits(tensors: Mapping[str, torch.Tensor], to: Path | None, say: Callable[[str], None]) -> None:
    """Say how many of the held-out images a trained model gets right, and write it.

    Args:
        to: directory of `model.safetensors`; None: it is not written.
    """
    held_out = Digits.read().held_out
    values = dict(tensors)
    pair = resize(held_out, torch.arange(len(held_out)), SHAPE)
    correct = count_correct(values, pair)
    say(f"held-out images: {correct} of {len(held_out)} right ({correct / len(held_out):.3f})")
    if to is not None:
        to.mkdir(parents=True, exist_ok=True)
        save_file(values, to / "model.safetensors")
        say(f"exported to {to}")


@torch.no_grad()
def count_correct(values: Mapping[str, torch.Tensor], images: Pair) -> int:
    """The images whose class the network with these values gets right."""
    model = nn.Sequential(OrderedDict((name, build()) for name, build in builders().items()))
    model.to(values["head.fc.weight"].dtype).load_state_dict(values)
    inputs, classes = convert_floats(images, values["head.fc.weight"].dtype)
    return int(count_right(model.eval()(inputs), classes)[0])
