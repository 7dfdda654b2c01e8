"""A job: the configuration with everything left open filled in, before torch or a transport is there."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from apps.common.flags.presets import find_preset
from apps.common.flags.run_flags import AUTO, AUTO_PLAN, config_json, flag
from apps.common.lm.models.gpt2_presets import PRESETS, ModelConfig, layer_costs, parameters
from apps.common.lm.sharded.layouts import Factors, resolve_layout, states_of
from apps.common.run.choose import UNCLIPPED, choose_plan, clip_of
from apps.common.run.plan_table import plan_table
from apps.gpt2.config import SEQUENCE as PUBLISHED_SEQUENCE
from apps.gpt2.config import GPT2Flags
from apps.gpt2.planning.open_layout import is_searched, memory_of_a_rank, search_layout
from apps.gpt2.planning.plan_file import follow_plan, identity
from apps.gpt2.planning.team import check_team, describe_layout, split_of, split_text
from apps.gpt2.planning.team_workload import rank_workload
from pipelined.errors import UsageError
from pipelined.planner.predicted_moves import PredictedMoves
from pipelined.programs.partition import partition
from pipelined.programs.plan import Plan
from pipelined.simulation.memory import planned_memory

BATCH = 32
"""Sequences a step, by default."""
ROWS = 4
"""The most sequences in a microbatch of a swarm or of Ravnest, by default."""
SEQUENCE = 64
"""Tokens a sequence, by default, if the model has as many positions."""


@dataclass(frozen=True)
class GPT2Job:
    """The job that will be run.

    Args:
        config: as given.
        model: the model's sizes.
        sequence: tokens a sequence.
        plan: the stages of each rank, and the cut of the batch.
        reason: why this plan was chosen.
        expected_s: seconds of a step, tried or else predicted; None without --plan.
        moves: those of teams that the plan predicts; empty without --plan.
        layout: --layout as it was given, which the configuration has by operator.
    """

    config: GPT2Flags
    model: ModelConfig
    sequence: int
    plan: Plan
    reason: str
    expected_s: float | None = None
    moves: Sequence[PredictedMoves] = ()
    layout: str | None = None

    @property
    def factors(self) -> dict[str, Factors]:
        """How the ranks of a worker split every operator; an empty dict for one rank."""
        return split_of(self.model, self.plan)

    @property
    def states(self) -> dict[str, str]:
        """What ranks that multiply by one weight split of it, by operator."""
        return states_of(self.plan.layout)

    def to_dict(self) -> dict[str, object]:
        """The resolved configuration as JSON can hold it: --print-config prints it, and checkpoints record it."""
        plan = {"schedule": self.plan.schedule, **self.plan.sizes}
        model = {"layers": self.model.layers, "d_model": self.model.d_model, "heads": self.model.heads}
        numbers = {"vocab": self.model.vocab, "dropout": self.model.dropout, "seq": self.sequence}
        numbers["clip"] = clip_of(self.config, self.plan)
        flags = self.config.to_dict()
        left_open = [name for name in ("clip",) if flags[name] is None]
        chosen = {"batch": self.plan.batch, "reason": self.reason, "left_open": left_open}
        pinned = {"threads": 1} if self.config.exact_sums else {}
        return {**flags, **plan, **model, **numbers, **chosen, **pinned}

    def describe(self) -> str:
        """The model, the plan and the batch, in a few lines."""
        plan = self.plan
        config = self.config
        total = parameters(self.model)
        lines = [
            f"model: GPT-2 {self.config.preset}, {total:,} parameters, {self.model.layers} blocks of width "
            f"{self.model.d_model}, vocabulary {self.model.vocab}",
            f"plan: {plan.schedule}, depth {plan.depth} x width {plan.width}, ranks: {plan.world_size} ({self.reason})",
            f"batch: {plan.batch} sequences of {self.sequence} tokens = {plan.microbatch_size} a microbatch x "
            f"{plan.total_microbatches} microbatches",
        ]
        if config.is_published:
            lines.append(describe_published(config, self.sequence))
        if self.factors:
            lines.append(describe_layout(self.layout, self.factors))
        if not plan.flushes:
            microbatches = plan.microbatches_an_update
            lines.append(f"updates: without a flush, by every {microbatches} microbatches' gradients; {UNCLIPPED}")
        return "\n".join(lines)

    def table(self, moves: Sequence[PredictedMoves] = ()) -> str:
        """One line a worker of a group: its stages, their layers, and the memory they take; and the moves of teams."""
        cut = partition(layer_costs(self.model, self.sequence), self.plan.depth)
        workload = rank_workload(self.model, self.plan, self.sequence, self.config.workload_options)
        shape = f"({self.plan.rows}, {self.sequence}, {self.model.d_model})"
        table = plan_table(self.plan, cut, workload, self.config.recompute, moves)
        return f"{table}\n  activations between stages: {shape}"

    def planned_memory(self, worker: int) -> float:
        """The bytes that a rank of a worker holds at its fullest."""
        workload = rank_workload(self.model, self.plan, self.sequence, self.config.workload_options)
        return planned_memory(self.plan, workload, self.config.recompute)[worker].total

    def json(self) -> str:
        return config_json(self.config, self.to_dict())


def resolve(
    config: GPT2Flags, world_size: int | None, model: ModelConfig | None = None, *, local_size: int | None = None
) -> GPT2Job:
    """Fill in what the user left open.

    Args:
        world_size: ranks that were started; None: as many as the plan needs.
        model: the sizes read from a Hugging Face directory or a tokenizer, instead of the preset's.
        local_size: ranks on this node, which share its memory; None: all.
    Raises:
        UsageError: the flags request something impossible.
    """
    model = model or model_config(config)
    sequence = sequence_of(config, model)
    if config.layout is not None:
        config = replace(config, layout=resolve_layout(config.layout))
    config, plan_file = follow_plan(config, identity(model, sequence), world_size)
    check_team(config, world_size)
    shape = {"tensor": config.team_size, "layers": model.layers + 2, "batch": BATCH}
    plan, reason = choose_plan(config, world_size, **shape, besides="embedding and head")
    layout = given_layout = config.layout
    if config.team_size > 1 and is_searched(layout):
        layout = search_layout(config, model, plan, sequence, memory_of_a_rank(local_size or plan.world_size))
    if config.plan != AUTO_PLAN or given_layout == AUTO:  # the planner searches auto with all else
        config = replace(config, layout=None if config.plan == AUTO_PLAN else layout)
    plan = replace(plan, layout=split_text(layout, config.team_size))
    split_of(model, plan)
    job = GPT2Job(config, model, sequence, plan, reason, layout=given_layout)
    if plan_file is None:
        return job
    plan = replace(plan, costs=plan_file.plan.costs)
    reason = f"{config.plan}: {plan_file.why}"
    return replace(job, plan=plan, reason=reason, expected_s=plan_file.step_s, moves=plan_file.moves)


def describe_published(config: GPT2Flags, sequence: int) -> str:
    """What a published model is trained with, in a line."""
    numbers = f"lr {config.lr:g}, betas {config.beta1:g} and {config.beta2:g}, sequences of {sequence} tokens"
    tokenizer = f"tokenizer {config.tokenizer}" if config.tokenizer else "the tokenizer of the data or of --init"
    return f"trained with {numbers}, {tokenizer}: GPT-2's, where nothing else was given"


def sequence_of(config: GPT2Flags, model: ModelConfig) -> int:
    """Tokens a sequence.

    Raises:
        UsageError: the model has fewer positions.
    """
    sequence = config.seq or min(PUBLISHED_SEQUENCE if config.is_published else SEQUENCE, model.positions)
    model.check_sequence(sequence)
    return sequence


def batch_of(config: GPT2Flags, copies: int) -> tuple[int, int]:
    """Sequences a step, and in a microbatch, where no plan divides the batch.

    Args:
        copies: by which --microbatches is multiplied.
    Raises:
        UsageError: the batch is not made of the microbatches.
    """
    if config.microbatches is None:
        batch = config.batch or BATCH
        return batch, config.microbatch or max(rows for rows in range(1, ROWS + 1) if batch % rows == 0)
    total = config.microbatches * copies
    batch = config.batch or (config.microbatch * total if config.microbatch else BATCH)
    rows, remainder = divmod(batch, total)
    if remainder or config.microbatch not in (None, rows):
        factor = f" x {copies} copies" if copies > 1 else ""
        flags = f"--batch {batch}, --microbatches {config.microbatches}{factor}"
        if config.microbatch:
            flags += f", --microbatch {config.microbatch}"
        remedy = "leave one of them out" if config.batch else f"give --batch a multiple of {total}"
        raise UsageError(f"the batch is not made of the microbatches ({flags}); {remedy}")
    return batch, rows


def model_config(config: GPT2Flags) -> ModelConfig:
    """The model's sizes, from the preset or the directory to start from, and the flags."""
    sizes = {name: getattr(config, name) for name in ("layers", "d_model", "heads", "vocab", "dropout")}
    if config.init is not None:
        return _read_initial_model(config.init, sizes)
    return replace(
        find_preset(config.preset, PRESETS), **{name: value for name, value in sizes.items() if value is not None}
    )


def _read_initial_model(directory: Path, sizes: dict[str, Any]) -> ModelConfig:
    """The sizes of the Hugging Face directory, which flags may repeat but not change (dropout apart)."""
    from apps.common.lm.huggingface.write import read_sizes

    model = read_sizes(directory)
    for name, value in sizes.items():
        if name != "dropout" and value is not None and value != getattr(model, name):
            fact = f"{flag(name)} {value} differs from {directory} ({getattr(model, name)})"
            raise UsageError(f"{fact}; leave the flag out")
    return replace(model, dropout=sizes["dropout"]) if sizes["dropout"] is not None else model
