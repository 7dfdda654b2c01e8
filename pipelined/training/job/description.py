"""The description of a job: its model, data, optimizer and numerics, equal on all ranks."""

from dataclasses import dataclass

from pipelined.programs.plan import Plan
from pipelined.training.job.model import Model
from pipelined.training.job.numerics import Numerics
from pipelined.training.job.optimizer_settings import OptimizerSettings
from pipelined.training.job.rank_context import MicrobatchSource


@dataclass(frozen=True, kw_only=True)
class JobDescription:
    """The description of a job, from which `build_rank` makes the trainer of a rank; equal on all ranks.

    `pipelined.train` makes it of an `ArrangedJob`, Ravnest of a `RavnestTraining`, a program of its configuration.

    Args:
        model: the description of the whole model; a rank builds its own layers alone. If workers are teams, it is a
            `TeamModel`, and a rank builds its member's pieces alone.
        plan: the arrangement; its world size must equal the transport's.
        feed: the data.
        optimizer_settings: the settings of the optimizer.
        sequence: tokens per sequence, for the costs of layers; 1 where these are those of a row.
        seed, fresh: the seed of initial values and dropout; initial values that are not fresh are unset, to be loaded.
        cut: the layers of each stage; empty: stages of costs as equal as can be.
        dropout_seed: the seed of dropout; None: `seed`.
    """

    model: Model
    plan: Plan
    feed: MicrobatchSource
    optimizer_settings: OptimizerSettings
    numerics: Numerics
    sequence: int = 1
    seed: int
    fresh: bool = True
    cut: tuple[range, ...] = ()
    dropout_seed: int | None = None
