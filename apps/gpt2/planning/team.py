"""`--tensor` and `--layout`: how the ranks of a worker split the model, and which flags go with that. No torch."""

from math import prod
from typing import Any

from apps.common.flags.run_flags import AUTO
from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.common.lm.sharded.layouts import (
    LAYOUT,
    OPERATORS,
    Factors,
    factors_of,
    layout_text,
    require_fitting,
    states_of,
)
from apps.gpt2.config import GPT2Flags, flag
from pipelined.errors import UsageError
from pipelined.programs.plan import Plan

SINGLE_RANK_FLAGS: dict[str, Any] = {"exact_sums": True, "all_reduce": "measured"}
"""Flags that, with these values, only a worker of one rank has yet."""


def flags_of_one_rank(config: GPT2Flags) -> list[str]:
    """The flags given that only a worker of one rank has yet."""
    return [name for name, value in SINGLE_RANK_FLAGS.items() if getattr(config, name) == value]


def names_layout(config: GPT2Flags) -> bool:
    """Whether only workers of several ranks will do, though their number is open."""
    return config.tensor == AUTO and config.layout not in (None, AUTO)


def check_team(config: GPT2Flags, world_size: int | None) -> None:
    """Refuse flags that do not go with --tensor.

    Args:
        world_size: ranks that were started; None: as many as the plan needs, which is one where T is left open.
    Raises:
        UsageError: the first of them, with the remedy.
    """
    is_alone = config.tensor == 1 or (config.tensor == AUTO and world_size in (None, 1))
    if is_alone and config.layout is not None:
        fact = f"one rank splits nothing (--layout {config.layout}, --tensor {config.tensor})"
        raise UsageError(f"{fact}; " + ("add --tensor" if config.tensor == 1 else "start more ranks, or give --tensor"))
    if names_layout(config) and config.plan is None:
        fact = f"a search alone chooses the ranks that split by a layout (--layout {config.layout}, --tensor {AUTO})"
        raise UsageError(f"{fact}; add --plan auto, or give --tensor a number")
    if config.team_size > 1 and (flags := flags_of_one_rank(config)):
        first = f"{flag(flags[0])} {getattr(config, flags[0])}"
        raise UsageError(f"--tensor {config.team_size} does not go with {first} yet; leave one of them out")


def split_text(layout: str | None, ranks: int) -> str:
    """Factors and states of every operator as text, where None is `LAYOUT`; "" for one rank. See `factors_of`."""
    if ranks == 1:
        return ""
    return layout_text(factors_of(layout or LAYOUT, ranks), states_of(layout or LAYOUT))


def split_of(model: ModelConfig, plan: Plan) -> dict[str, Factors]:
    """The factors of every operator; an empty dict for one rank.

    Raises:
        UsageError: the layout is invalid, or leaves ranks without a head or a sequence.
    """
    if plan.tensor == 1:
        return {}
    factors = factors_of(plan.layout, plan.tensor)
    require_fitting(factors, model.heads, plan.rows)
    return factors


def describe_layout(layout: str | None, factors: dict[str, Factors]) -> str:
    """The layout in a line.

    Args:
        layout: as it was given.
    """
    text = ", ".join(f"{name} {factors[name]}" for name in OPERATORS)
    prefix = "" if layout and "=" in layout else f"{layout or AUTO}, "
    return f"layout: {prefix}{prod(factors['wte'])} ranks a worker (rows.columns.contraction: {text})"
