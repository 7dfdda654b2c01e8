"""A plan file and the flags: the arrangement comes from the file, everything else from the flags. No torch.

A flag may repeat what the plan says, but not change it.
"""

from collections.abc import Mapping
from dataclasses import replace
from re import sub
from typing import Any

from apps.common.flags.run_flags import AUTO, AUTO_PLAN
from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.common.run.choose import refuse_other_plan
from apps.gpt2.config import GPT2Flags
from apps.gpt2.planning.team import split_text
from pipelined.planner.plan_file import PlanFile, read_plan
from pipelined.programs.plan import SIZES, Plan

ARRANGEMENT = ("schedule", *SIZES, "tensor", "layout", "recompute")
"""The flags that a plan sets, beside the knobs of its schedule."""


def given_arrangement(config: GPT2Flags) -> dict[str, Any]:
    """The flags of the arrangement that were given."""
    defaults = GPT2Flags()
    flags = {name: getattr(config, name) for name in ARRANGEMENT}
    return {name: value for name, value in flags.items() if value != getattr(defaults, name)} | dict(config.knobs)


def arrangement(plan: Plan, recompute: bool) -> dict[str, Any]:
    """The fields of a `GPT2Flags` that give this plan."""
    flags = {"schedule": plan.schedule, **plan.sizes, "tensor": plan.tensor}
    return {**flags, "layout": plan.layout or None, "knobs": plan.knobs, "recompute": recompute}


def is_open(config: GPT2Flags) -> bool:
    """Whether the planner chooses what was left open: all of the arrangement, or the ranks of a worker."""
    return config.plan == AUTO_PLAN or (
        config.plan is None and (config.tensor == AUTO or not given_arrangement(config))
    )


def identity(model: ModelConfig, sequence: int) -> dict[str, Any]:
    """What a plan and a job must have in common."""
    return {**model.identity(), "seq": sequence}


def follow_plan(
    config: GPT2Flags, model: Mapping[str, Any], world_size: int | None
) -> tuple[GPT2Flags, PlanFile | None]:
    """Set the flags of the arrangement from `--plan`, if it is given.

    Args:
        model: the identity of what is to be trained.
        world_size: ranks that were started; None: as many as the plan needs.
    Returns: the configuration as if the plan had been given as flags, and the plan.
    Raises:
        UsageError: the file is no plan, is for another model or number of ranks, or a flag says otherwise.
    """
    if config.plan in (None, AUTO_PLAN):
        return config, None
    plan_file = read_plan(config.plan, config.schedule)
    plan_file.require(config.plan, model, world_size)
    plan = plan_file.plan
    sizes = {"tensor": plan.tensor, "recompute": plan_file.recompute, "batch": plan.batch}
    plan_flags = {"layout": None, **plan.to_dict(), **sizes}
    flags = given_arrangement(config) | ({} if config.batch is None else {"batch": config.batch})
    if config.layout is not None:
        text = split_text(config.layout, plan.tensor)
        flags["layout"] = text if "+" in plan.layout else sub(r"\+\w+", "", text)  # plans once left states to the flag
    refuse_other_plan(config.plan, plan_flags, flags)
    given_layout = {} if config.layout is None else {"layout": config.layout}  # it may say more than the plan's factors
    return replace(config, **arrangement(plan_file.plan, plan_file.recompute) | given_layout), plan_file
