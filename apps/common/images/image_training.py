"""A row of layers trained on labelled images, and how many of those held out it gets right. Needs torch."""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

import pipelined as pp
from apps.common.flags.run_flags import RunFlags
from apps.common.images.digits import Images
from apps.common.rows.row_training import RowTraining
from apps.common.run.numerics import DTYPES
from apps.common.run.report import Report
from apps.common.run.trackers import append
from pipelined.api.rank_session import RankSession
from pipelined.programs.plan import Plan
from pipelined.random.keyed_random import keyed_generator
from pipelined.training.models.batch import convert_floats

Pair = tuple[torch.Tensor, torch.Tensor]
"""Images (B, colours, side, side) and their classes (B,)."""
Builders = Mapping[str, Callable[[], nn.Module]]


class ImageTraining(RowTraining):
    """Layers from images to classes.

    Args:
        config: the flags.
        plan: the cut of a step's batch.
        shape: what a model takes: channels and the pixels along each side of an image.
    """

    def __init__(self, config: RunFlags, plan: Plan, shape: tuple[int, int]):
        self._config, self._plan, self._shape = config, plan, shape

    @abstractmethod
    def builders(self) -> Builders:
        """What builds each layer, by name, in order: (B, colours, side, side) to (B, classes)."""

    @abstractmethod
    def images(self) -> tuple[Images, Images]:
        """The images to train on, and those that are held out."""

    def row(self) -> pp.Sequential:
        return pp.Sequential(self.builders(), initial="keyed")

    def loss(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output, targets)

    def example(self, rows: int) -> Pair:
        colours, side = self._shape
        images = torch.zeros(()).expand(rows, colours, side, side)
        return images, torch.zeros((), dtype=torch.int64).expand(rows)

    def microbatch(self, step: int, number: int) -> Pair:
        (train, _) = self.images()
        rows = self._plan.rows
        index = order(self._config.seed, step, self._plan.batch, len(train))
        return self.resize(train, index[number * rows : (number + 1) * rows])

    def held_out_windows(self) -> Sequence[Pair]:
        data = self.images()[1]
        return [self.resize(data, index) for index in torch.arange(len(data)).split(self._plan.rows)]

    def resize(self, data: Images, index: torch.Tensor) -> Pair:
        """Some images, with the size and the channels that the model takes."""
        return resize(data, index, self._shape)

    def baselines(self) -> dict[str, int]:
        """How many of the held-out images other methods get right, by their names."""
        return {}

    async def finish(self, rank: RankSession, report: Report, loss: float) -> None:
        """Count the held-out images that the model gets right, in its pipeline; on rank 0, those of other methods."""
        total = len(self.images()[1])
        windows = [convert_floats(window, DTYPES[self._config.dtype]) for window in self.held_out_windows()]
        correct = round(await rank.evaluate(windows, count_right) * total)
        if rank.transport.rank:
            return
        baselines = await asyncio.to_thread(self.baselines)
        scores = [f"held-out images: {correct} of {total} right ({correct / total:.3f})"]
        scores += [f"{name.replace('_', ' ')}: {count} ({count / total:.3f})" for name, count in baselines.items()]
        report.say("; ".join(scores))
        if self._config.metrics is not None:
            append(self._config.metrics, {"step": rank.done, "right": correct, "held_out": total, **baselines})


def count_right(output: torch.Tensor, classes: torch.Tensor) -> tuple[torch.Tensor, int]:
    """How many images are of the class with the largest of their outputs (B, classes), and their number."""
    return (output.argmax(1) == classes).sum(), len(classes)


def resize(data: Images, index: torch.Tensor, shape: tuple[int, int]) -> Pair:
    """Some images, with this number of channels and this side in pixels."""
    (colours, side) = shape
    images = torch.from_numpy(data.images)[index]
    if images.dim() == 3:
        images = images[:, None]
    if images.dtype == torch.uint8:
        images = images.float() / 255
    if images.shape[2:] != (side, side):
        images = nn.functional.interpolate(images, (side, side), mode="bilinear", align_corners=False)
    return images.expand(-1, colours, -1, -1).contiguous(), torch.from_numpy(data.classes)[index]


def order(seed: int, step: int, batch: int, images: int) -> torch.Tensor:
    """The images of a step: each epoch is a permutation of its own, and a step may end one and begin the next."""
    first_image = step * batch
    epochs = range(first_image // images, (first_image + batch - 1) // images + 1)
    indices = torch.cat([torch.randperm(images, generator=keyed_generator(seed, "epoch", epoch)) for epoch in epochs])
    offset = first_image - epochs.start * images
    return indices[offset : offset + batch]
