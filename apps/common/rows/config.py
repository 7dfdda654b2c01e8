"""The flags of a program that trains a row of layers, and what such a program adds to them. No torch."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from apps.common.flags.run_flags import AUTO, AUTO_PLAN, RunFlags, parse_flags
from pipelined.errors import UsageError
from pipelined.programs.plan import Plan

if TYPE_CHECKING:
    from apps.common.rows.row_training import RowTraining

F = TypeVar("F", bound="RowFlags")
SYSTEMS = {
    "swarm": "use `python -m apps.gpt2 --schedule swarm`",
    "ravnest": "use `python -m apps.gpt2 --schedule ravnest`, or --schedule async_1f1b, its order in one pipeline",
}
"""Schedules of `apps.gpt2` in which the ranks form another system than a pipeline, and what to do instead."""


class RowTask(ABC):
    """The model of a program, and its data.

    Attributes:
        config: the flags.
        unit: what the data is made of: images or tokens.
        units_per_row: how many of them a row of a batch has.
        rows: what a row is called.
        batch: rows a step, by default.
        depth: the layers between which stages can be cut.
        besides: those of them that --layers does not set, in words; "": there is no --layers.
    """

    unit, units_per_row, rows, batch = "images", 1, "images", 32
    besides = ""
    config: "RowFlags"
    depth: int

    @abstractmethod
    def describe(self) -> str:
        """The model in a line."""

    @abstractmethod
    def sizes(self) -> dict[str, Any]:
        """What --print-config shows of the model, besides the flags."""

    @abstractmethod
    def check(self) -> None:
        """Raises UsageError: the data is missing, or the model cannot be written where it should be."""

    def layout(self, plan: Plan) -> str | None:
        """How the ranks of a worker split the layers; None: as in megatron, or for one rank."""
        return self.config.layout

    @abstractmethod
    def training(self, plan: Plan) -> "RowTraining":
        """The model and the data by a plan. Imports torch."""


def parse_planned(words: list[str], default: F, program: str) -> F:
    """The flags of a program whose model is to be planned, checked before torch is imported.

    Raises:
        UsageError: there can be no such model.
        SystemExit: 0 after --help.
    """
    config = parse_flags(words, default, program)
    config.task()
    return config


@dataclass(frozen=True)
class RowFlags(RunFlags):
    """How a row of layers is trained; a program adds its model and its data."""

    layout: str | None = None
    """How the ranks of a worker split the model: data, megatron, auto (searched), or ROWS.COLUMNS.CONTRACTION by layer,
    such as head=1.2.1; other layers are as in megatron, which is the default."""
    beta2: float = 0.999
    """AdamW's decay of the second moment."""
    lr: float = 2e-3
    """Highest learning rate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if remedy := SYSTEMS.get(self.schedule or ""):
            raise UsageError(f"only apps.gpt2 has --schedule {self.schedule}, which is no pipeline; {remedy}")
        if self.tensor == 1 and self.layout is not None:
            raise UsageError(f"one rank splits nothing (--layout {self.layout}, --tensor 1); add --tensor")
        if self.team_size > 1 and self.recompute_attention:
            fact = f"a worker of several ranks (--tensor {self.tensor}) recomputes its layers whole"
            raise UsageError(f"{fact}; give --recompute without attention")

    @property
    def is_open(self) -> bool:
        """Whether the planner chooses what was left open."""
        return self.plan == AUTO_PLAN or (self.plan is None and self.tensor == AUTO)

    @property
    def given_team(self) -> dict[str, Any]:
        """The ranks of a worker and their layout, as far as they are not open, and more than one."""
        team = {} if self.tensor == 1 else {"tensor": self.tensor}
        return team if self.layout in (None, AUTO) else {**team, "layout": self.layout}

    def task(self) -> RowTask:
        """What these flags train.

        Raises:
            UsageError: there can be no such model.
        """
        raise NotImplementedError
