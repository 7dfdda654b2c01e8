"""A job: the flags with everything left open filled in, before torch or a transport is there."""

from dataclasses import dataclass, replace
from typing import Any

from apps.common.flags.config_file import LEFT_OPEN
from apps.common.flags.run_flags import AUTO, AUTO_PLAN, config_json
from apps.common.rows.config import RowFlags, RowTask
from apps.common.run.choose import choose_plan, clip_of, refuse_other_plan
from pipelined.planner.plan_file import PlanFile, read_plan
from pipelined.programs.plan import Plan


@dataclass(frozen=True)
class RowJob:
    """The job that will be run.

    Args:
        config: as given.
        task: the model and the data.
        plan: the stages of each rank, and the cut of the batch.
        reason: why this plan was chosen.
        plan_file: the plan file that is followed, if any.
    """

    config: RowFlags
    task: RowTask
    plan: Plan
    reason: str
    plan_file: PlanFile | None = None

    def to_dict(self) -> dict[str, object]:
        """The resolved configuration as JSON can hold it."""
        left_open = [name for name in ("clip",) if getattr(self.config, name) is None]
        numbers = {"clip": clip_of(self.config, self.plan), "batch": self.plan.batch}
        chosen = {**numbers, "reason": self.reason, LEFT_OPEN: left_open}
        return {**self.config.to_dict(), **self.plan.to_dict(), **self.task.sizes(), **chosen}

    def json(self) -> str:
        return config_json(self.config, self.to_dict())

    def describe(self) -> str:
        """The model, the plan and the batch, in a few lines."""
        plan = self.plan
        team = f" x tensor {plan.tensor}" if plan.tensor > 1 else ""
        return "\n".join(
            [
                self.task.describe(),
                f"plan: {plan.schedule}, depth {plan.depth} x width {plan.width}{team}, ranks: {plan.world_size} "
                f"({self.reason})",
                f"batch: {plan.batch} {self.task.rows} = {plan.microbatch_size} a microbatch x "
                f"{plan.total_microbatches} microbatches",
            ]
        )


def resolve(config: RowFlags, world_size: int | None, plan_file: PlanFile | None = None) -> RowJob:
    """Fill in what the user left open.

    Args:
        world_size: ranks that were started; None: as many as the plan needs.
        plan_file: what was planned for `--plan auto`; without it what the flags say.
    Raises:
        UsageError: the flags request something impossible.
    """
    if config.plan not in (None, AUTO_PLAN):
        plan_file = read_plan(config.plan, config.schedule)
    if plan_file is not None:
        config = _follow_plan(config, plan_file)
    task = config.task()
    ranks = None if config.tensor == AUTO else world_size  # a planner fits the ranks
    shape = {"tensor": config.team_size, "layers": task.depth, "batch": task.batch}
    plan, reason = choose_plan(config, ranks, **shape, besides=task.besides)
    if plan_file is not None:
        plan, reason = replace(plan, layout=plan_file.plan.layout), f"{config.plan or AUTO_PLAN}: {plan_file.why}"
    return RowJob(config, task, plan, reason, plan_file)


def _follow_plan(config: RowFlags, plan_file: PlanFile) -> RowFlags:
    """The flags as if the plan had been given as flags.

    Raises:
        UsageError: a flag says otherwise.
    """
    plan = plan_file.plan
    plan_flags: dict[str, Any] = {"schedule": plan.schedule, **plan.sizes, "batch": plan.batch}
    flags = {name: value for name in plan_flags if (value := getattr(config, name)) is not None}
    team: dict[str, Any] = {"tensor": plan.tensor, "layout": plan.layout or None}
    team_flags = {name: value for name, value in config.given_team.items() if value != AUTO}
    refuse_other_plan(config.plan or AUTO_PLAN, plan_flags | team, flags | team_flags)
    return replace(config, **plan_flags, **team, knobs=plan.knobs, recompute=plan_file.recompute)
