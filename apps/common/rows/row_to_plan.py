"""A row of layers for the planner, and for --dry-run. Needs torch, and no data."""

from dataclasses import dataclass, field
from typing import TypeVar

import torch

from apps.common.rows.config import RowFlags, RowTask
from apps.common.rows.job import resolve
from apps.common.run.numerics import DTYPES, numerics
from collectives import Links
from pipelined.api.planning.run_planner import run_planner
from pipelined.api.planning.split_row_model import SplitRowModel
from pipelined.planner.plan_file import PlanFile
from pipelined.planner.request import PlanRequest
from pipelined.process.launch import Launch
from pipelined.process.reporting.progress import say_nothing
from pipelined.simulation import Machine
from pipelined.training.models.batch import convert_floats
from pipelined.training.models.user_model import bind

BINDING_FLAGS = ("schedule", "depth", "width", "microbatches")
"""Flags that a plan must keep where they are given."""


@dataclass(frozen=True)
class RowToPlan(SplitRowModel):
    """See `SplitRowModel`.

    Args:
        task: what is trained.
    """

    task: RowTask = field(kw_only=True)


PlannedRow = TypeVar("PlannedRow", bound=RowToPlan)


def row_to_plan(kind: type[PlannedRow], config: RowFlags, batch: int | None = None) -> PlannedRow:
    """What a configuration asks to be planned.

    Args:
        kind: `RowToPlan`, or a program's own.
        batch: rows a step, instead of the configuration's.
    """
    job = resolve(config, None)
    training = job.task.training(job.plan)
    rows = batch or config.batch or job.task.batch

    def optimizer(parameters: object) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=config.lr)  # type: ignore[arg-type]

    arrangement = {name: getattr(config, name) for name in BINDING_FLAGS if getattr(config, name) is not None}
    example = convert_floats(training.example(1)[0], DTYPES[config.dtype])
    return kind(
        bind(training.row(), training.loss, config.seed, example),
        training.example(rows),
        optimizer,
        numerics(config),
        {**arrangement, **config.given_team, **dict(config.knobs), **({"compile": True} if config.compile else {})},
        task=job.task,
    )


def plan_now(config: RowFlags, batch: int, launch: Launch, program: str) -> PlanFile:
    """Measure on the ranks that were started, and find the fastest plan; all ranks call this together.

    Raises:
        UsageError: nothing fits the memory, or no team can split the model.
    """
    model = row_to_plan(RowToPlan, config, batch)
    request = PlanRequest(launch.world_size or 1, costs=None, machine=Machine(Links()))  # what is open is measured
    return run_planner(model, launch, request, say_nothing, program).plan_file
