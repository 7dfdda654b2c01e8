"""VGG for the planner, and for the search over shardings. Needs torch, and no images."""

from dataclasses import dataclass, field

import torch

from apps.common.numerics import DTYPES, numerics
from apps.vgg.config import Config, parse
from apps.vgg.job import BATCH, resolve
from apps.vgg.model import cross_entropy, row
from apps.vgg.presets import KERNEL, VGGConfig
from collectives import Links
from pipelined.api.laboratory.described import machine_of
from pipelined.api.laboratory.planned_layers import PlannedLayers
from pipelined.api.laboratory.planning import PlanRequest, find_plan
from pipelined.api.model.user_model import bind
from pipelined.errors import UsageError
from pipelined.planner.plan_file import PlanFile
from pipelined.process.launch import Launch
from pipelined.sharding.search.chain import Chain, Operator
from pipelined.sharding.search.matmul import STATE_NUMBERS, Matmul

GIVEN = ("schedule", "depth", "width", "microbatches")
"""Flags that a plan must keep where they are given."""


@dataclass(frozen=True)
class PlannedVGG(PlannedLayers):
    """See `PlannedLayers`.

    Args:
        sizes_of_model: the model's sizes.
    """

    sizes_of_model: VGGConfig = field(kw_only=True)

    def chain(self, microbatches: int) -> Chain:
        """The model's multiplications, for the search over ways to split them."""
        return chain(self.sizes_of_model, self.batch, microbatches, itemsize=self.precision.dtype.itemsize)


def subject(flags: list[str], batch: int | None = None) -> PlannedVGG:
    """The model that `python -m pipelined plan` plans: this program with these flags.

    Args:
        batch: images a step, instead of `--batch`.
    """
    config = parse(flags)
    return planned_vgg(config, batch or config.batch or BATCH)


def plan_now(config: Config, batch: int, launch: Launch) -> PlanFile:
    """Measure on the ranks that were started, and find the fastest plan; all ranks call this together.

    Raises:
        UsageError: nothing fits the memory, or a worker is to be several ranks.
    """
    if config.tensor > 1:
        raise UsageError(f"--plan auto plans workers of one rank (--tensor {config.tensor}); leave one of them out")
    request = PlanRequest(launch.world_size or 1, None, machine_of(None, None, unstated=Links()))
    return find_plan(planned_vgg(config, batch), launch, request, lambda line: None, "python -m apps.vgg").content


def planned_vgg(config: Config, batch: int) -> PlannedVGG:
    """What a configuration asks to be planned; of a step's images only the shape is there."""
    sizes = resolve(config, None).model
    images = torch.zeros(()).expand(batch, sizes.colours, sizes.side, sizes.side)
    classes = torch.zeros((), dtype=torch.int64).expand(batch)

    def optimizer(parameters: object) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=config.lr)  # type: ignore[arg-type]

    given = {name: getattr(config, name) for name in GIVEN if getattr(config, name) is not None}
    return PlannedVGG(
        bind(row(sizes), cross_entropy, config.seed, images[:1].to(DTYPES[config.dtype])),
        (images, classes),
        optimizer,
        numerics(config),
        {**given, **dict(config.knobs)},
        sizes_of_model=sizes,
    )


def chain(config: VGGConfig, batch: int, microbatches: int, itemsize: int = 4) -> Chain:
    """The convolutions and dense layers in order, as multiplications; the others are computed where their input lies.

    A convolution's rows are images times places; images are split whole.

    Args:
        batch: images a step.
        itemsize: bytes of a parameter and of an activation's number.
    Raises:
        UsageError: the microbatches do not divide the batch.
    """
    if batch % microbatches:
        fact = f"the microbatches do not divide the batch (batch: {batch}, microbatches: {microbatches})"
        raise UsageError(f"{fact}; take --microbatches that divides it")
    sizes = [
        (each.name, Matmul(batch * each.side**2, each.inputs, each.outputs, taps=KERNEL**2))
        for each in config.convolutions
    ]
    sizes += [(each.name, Matmul(batch, each.inputs, each.outputs)) for each in config.layers]
    names = [f"stream.{place}" for place in range(len(sizes))]
    operators = [
        Operator(
            name=name,
            matmul=matmul,
            output_columns=matmul.outputs,
            input_stream=before,
            output_stream=after,
            sequences=batch // microbatches,
            heads=matmul.outputs if matmul.taps > 1 else None,
        )
        for (name, matmul), before, after in zip(sizes, names, [*names[1:], None], strict=True)
    ]
    biases = sum(each.matmul.outputs for each in operators)
    kept = sum(each.matmul.tokens * 2 * each.matmul.outputs for each in operators) / microbatches
    return Chain(
        operators,
        keeps=True,
        split_bytes=kept * itemsize,
        whole_bytes=biases * STATE_NUMBERS * itemsize,
        itemsize=itemsize,
    )
