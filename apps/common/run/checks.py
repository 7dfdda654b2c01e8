"""Checks of flags and plan that every program of pipelines makes before torch is imported."""

from collections.abc import Sequence

from apps.common.flags.command_flags import check_directories, check_files
from apps.common.flags.run_flags import RunFlags, start_of
from apps.common.run.trackers import check_trackers
from collectives.algorithms import parse_choice
from pipelined.errors import UsageError
from pipelined.programs.plan import Plan
from pipelined.programs.proof.check import check
from pipelined.programs.recording import record
from pipelined.programs.updates.exact_grid import require_exact
from pipelined.programs.updates.master_rules import require_delayed, require_flush
from pipelined.schedules import find
from pipelined.state.checkpoints.checkpoint import open_checkpoint
from pipelined.training.exchange.compression import check_codec
from pipelined.training.graph.compiled import require_compilable
from pipelined.training.segments.loss_scale import require_scalable
from pipelined.training.sums.all_reduce_halves import require_divisible


def check_run(config: RunFlags, plan: Plan, other_sums: Sequence[str] = ()) -> None:
    """Refuse a run that would fail later, or write where it cannot.

    Args:
        other_sums: the program's own values of --all-reduce, besides the algorithms.
    Raises:
        UsageError: the first mistake found, with its remedy.
    Cost: what the proof of the schedule costs; no tensor is read.
    """
    check(record(find(plan.schedule), plan.proof_shape))
    check_sums(config.all_reduce, other_sums)
    if config.divides:
        require_divisible(plan, config.all_reduce)
    check_codec(config.compress, "--compress")
    if config.exact_sums:
        require_exact(plan, config.compress)
    if config.compile:
        require_compilable(plan, exact=config.exact_sums, attention=config.recompute_attention)
    if config.master_itemsize or config.delayed_update:
        require_flush(plan)
    check_delayed(config)
    if config.dtype == "float16":
        require_scalable(plan, config.exact_sums)
    _check_rate(config)
    check_trackers(config)
    check_files(metrics=config.metrics)
    check_directories(checkpoint=config.checkpoint)
    path = start_of(config)
    if path is not None and (done := open_checkpoint(path).meta.step) > config.steps:
        raise UsageError(f"{path} is beyond the last step (saved: {done}, --steps {config.steps}); raise --steps")


def check_sums(choice: str, other_values: Sequence[str] = ()) -> None:
    """Refuse an unknown all-reduce.

    Args:
        other_values: values that are known besides the algorithms.
    """
    if choice in other_values:
        return
    try:
        parse_choice(choice)
    except ValueError as error:
        raise UsageError("; or ".join([f"--all-reduce: {error}", *other_values])) from error


def check_delayed(config: RunFlags) -> None:
    """Refuse --delayed-update without --offload-optimizer, or in float16."""
    offload = config.offload_optimizer
    is_scaled = config.dtype == "float16"
    require_delayed(offload=offload, delayed=config.delayed_update, scaled=is_scaled)


def _check_rate(config: RunFlags) -> None:
    if config.min_lr is None:
        return
    if config.lr_schedule == "constant":
        fact = f"a constant learning rate does not fall to --min-lr {config.min_lr:g}"
        raise UsageError(f"{fact}; leave --min-lr out, or choose another --lr-schedule")
    if config.min_lr > config.lr:
        raise UsageError(f"--min-lr is above --lr ({config.min_lr:g}, {config.lr:g}); lower it, or leave it out")
