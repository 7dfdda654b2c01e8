"""What a user's call trains: the model, its data, a plan with nothing open, and the numerics; equal on all ranks."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pipelined.api.data.feed import RankFeed
from pipelined.api.user_optimizer import UserOptimizer
from pipelined.errors import UsageError
from pipelined.programs.plan import Plan
from pipelined.training.job.description import JobDescription
from pipelined.training.job.numerics import Numerics
from pipelined.training.models.split.split_row import SplitRow
from pipelined.training.models.user_model import UserModel


@dataclass(frozen=True)
class ArrangedJob:
    """What a user's call trains, equal on all ranks.

    Args:
        make_settings: makes the settings of one rank's optimizer.
        notes: what checkpoints record of the run besides its arrangement, as JSON can hold it.
    """

    model: UserModel
    feed: RankFeed
    plan: Plan
    make_settings: Callable[[], UserOptimizer]
    numerics: Numerics
    seed: int
    notes: Mapping[str, Any] = field(default_factory=dict)

    def describe(self, settings: UserOptimizer) -> JobDescription:
        """The job as one rank builds it. Raises UsageError: clipping or a scheduler, and a schedule without a flush."""
        if settings.clip and not self.plan.flushes:
            fact = f"{self.plan.schedule} updates a stage before the global norm is known (clip: {settings.clip:g})"
            raise UsageError(f"{fact}; leave clip out, or choose a schedule with a flush")
        if settings.scheduler is not None and not self.plan.flushes:
            fact = f"{self.plan.schedule} updates a stage several times a step, so a scheduler has no step to follow"
            raise UsageError(f"{fact}; leave lr_scheduler out, or choose a schedule with a flush")
        return JobDescription(
            model=self.model, plan=self.plan, feed=self.feed, numerics=self.numerics, seed=self.seed,
            optimizer_settings=settings,
        )  # fmt: skip

    def arguments(self, settings: UserOptimizer) -> Mapping[str, str]:
        """What numbers and messages depend on, in words: equal on all ranks."""
        plan = {name: value for name, value in self.plan.to_dict().items() if name != "costs"}
        words = {"tensor": 1, **plan} | asdict(self.numerics)
        words |= {"layers": self.model.layers, "seed": self.seed, "clip": settings.clip}
        if isinstance(self.model, SplitRow):  # the plan has no layout where the model chose it
            words["layout"] = self.model.describe().removeprefix("layout: ")
        return {name: str(value) for name, value in words.items()}
