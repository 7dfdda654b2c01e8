"""A job: the flags with everything left open filled in, before torch or a transport is there."""

from dataclasses import dataclass, replace

from apps.common.choose import RequestedShape, choose
from apps.common.config_file import LEFT_OPEN
from apps.common.flags import AUTO_PLAN, config_json
from apps.rows.config import RowFlags, RowTask
from pipelined.errors import UsageError
from pipelined.planner.plan_file import PlanFile, read_plan
from pipelined.programs.plan import Plan

CLIP = 1.0
"""Largest global gradient norm, by default, where the norm is known before the update."""


@dataclass(frozen=True)
class Job:
    """What will be run.

    Args:
        config: as given.
        task: the model and the data.
        plan: the stages of each rank, and the cut of the batch.
        reason: why this plan was chosen.
        planned: the plan file that is followed, if any.
    """

    config: RowFlags
    task: RowTask
    plan: Plan
    reason: str
    planned: PlanFile | None = None

    @property
    def clip(self) -> float:
        """Largest global gradient norm; 0 does not clip."""
        default = CLIP if self.plan.flushes else 0.0
        return default if self.config.clip is None else self.config.clip

    def plain(self) -> dict[str, object]:
        """The resolved configuration as JSON can hold it."""
        left_open = [name for name in ("clip",) if getattr(self.config, name) is None]
        chosen = {"clip": self.clip, "batch": self.plan.batch, "reason": self.reason, LEFT_OPEN: left_open}
        return {**self.config.plain(), **self.plan.plain(), **self.task.sizes(), **chosen}

    def json(self) -> str:
        return config_json(self.config, self.plain())

    def describe(self) -> str:
        """The model, the plan and the batch, in a few lines."""
        plan = self.plan
        team = f" x tensor {plan.tensor}" if plan.tensor > 1 else ""
        return "\n".join(
            [
                self.task.describe(),
                f"plan: {plan.schedule}, depth {plan.depth} x width {plan.width}{team}, ranks: {plan.world_size} "
                f"({self.reason})",
                f"batch: {plan.batch} {self.task.rows} = {plan.microbatch} a microbatch x {plan.total_microbatches} "
                "microbatches",
            ]
        )


def resolve(config: RowFlags, world_size: int | None, planned: PlanFile | None = None) -> Job:
    """Fill in what the user left open.

    Args:
        world_size: ranks that were started; None: as many as the plan needs.
        planned: what was planned for `--plan auto`; without it what the flags say.
    Raises:
        UsageError: the flags request something impossible.
    """
    if config.plan not in (None, AUTO_PLAN):
        planned = read_plan(config.plan, config.schedule)
    if planned is not None:
        config = _followed(config, planned)
    task = config.task()
    requested = RequestedShape(
        workers(config.tensor, world_size),
        task.depth,
        config.batch or task.batch,
        config.batch is not None,
        config.schedule,
        1 if config.depth is None and config.tensor > 1 else config.depth,
        config.width,
        config.knobs,
        config.microbatch,
        config.microbatches,
    )
    plan, reason = choose(requested)
    plan = replace(plan, tensor=config.tensor)
    if config.clip and not plan.flushes:
        fact = f"--clip {config.clip:g} does not go with {plan.schedule}, which knows no norm before it updates"
        raise UsageError(f"{fact}; leave --clip out, or use a schedule with a flush")
    return Job(config, task, plan, f"{config.plan}: {planned.why}" if planned else reason, planned)


def workers(tensor: int, world_size: int | None) -> int | None:
    """Number of workers of `world_size` ranks; None if the ranks are open.

    Raises:
        UsageError: T does not divide the ranks.
    """
    if world_size is None:
        return None
    if world_size % tensor:
        fact = f"--tensor does not divide the ranks (--tensor {tensor}, ranks: {world_size})"
        raise UsageError(f"{fact}; start a multiple of {tensor} ranks")
    return world_size // tensor


def _followed(config: RowFlags, planned: PlanFile) -> RowFlags:
    """The flags as if the plan had been given as flags.

    Raises:
        UsageError: a flag says otherwise.
    """
    plan = planned.plan
    says = {name: getattr(plan, name) for name in ("schedule", "depth", "width", "microbatch", "microbatches", "batch")}
    for name, value in says.items():
        given = getattr(config, name)
        if given not in (None, value):
            fact = f"--{name} {given} is not what {config.plan} says ({value})"
            raise UsageError(f"{fact}; leave the flag out, or plan again with it")
    sizes = {**says, "tensor": plan.tensor, "knobs": plan.knobs, "recompute": planned.recompute}
    return replace(config, **sizes)
