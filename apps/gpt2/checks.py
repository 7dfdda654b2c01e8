"""Checks of a job before torch is imported: its inputs can be read, and its outputs can be written.

Rank 0 alone runs them, before any rank builds anything, so a mistake is reported once and nothing is overwritten.
"""

from pathlib import Path

from apps.common.checks import check_training
from apps.common.flags import start_of
from apps.common.paths import check_directory, check_export, check_file
from apps.common.trackers import check_trackers
from apps.gpt2.job import Job
from collectives.algorithms import parse_choice
from pipelined.errors import UsageError
from pipelined.programs.proof.check import check
from pipelined.programs.record import record
from pipelined.schedules import find
from pipelined.state.checkpoints import checkpoint
from pipelined.state.checkpoints.checkpoint import Checkpoint
from pipelined.training.replay import check_steps, read_orders

MEASURED = "measured"
"""Instead of an all-reduce: measure all, and take the fastest."""


def check_job(job: Job) -> None:
    """Refuse a job that would fail later, or overwrite files of another.

    Raises:
        UsageError: the first mistake found, with its remedy.
    Cost: what the proof of the schedule costs; no tensor is read.
    """
    config = job.config
    check(record(find(job.plan.schedule), job.plan.proof_shape))
    check_sums(config.all_reduce)
    if config.divides and config.all_reduce == MEASURED:
        fact = "--shard-optimizer needs sums that are scattered, and --all-reduce measured may find others"
        raise UsageError(f"{fact}; use --all-reduce auto")
    check_training(config, job.plan)
    check_trackers(config)
    for flag, path in (("--metrics", config.metrics), ("--trace", config.trace)):
        if path is not None:
            check_file(flag, path)
    if config.replay is not None:
        check_steps(read_orders(config.replay, job.plan), job.plan, range(_done(job), config.steps))
    if config.export is not None:
        check_export(config.export)
    if config.checkpoint is not None:
        check_checkpoints(job, config.checkpoint)
    if config.resume is not None:
        check_resume(job)


def check_sums(words: str) -> None:
    """Refuse an unknown all-reduce."""
    if words == MEASURED:
        return
    try:
        parse_choice(words)
    except ValueError as error:
        raise UsageError(f"--all-reduce: {error}; or {MEASURED}") from error


def check_checkpoints(job: Job, path: Path) -> None:
    """Refuse a checkpoint directory that cannot be used, or that holds another model or an earlier run."""
    check_directory("--checkpoint", path)
    remedy = "add --resume auto to go on from it, or give --checkpoint another directory"
    checkpoint.require_continued(path, job.model.identity(), start_of(job.config), remedy)


def check_resume(job: Job) -> None:
    """Refuse a checkpoint that is not whole, of another model, or beyond the last step."""
    steps, done = job.config.steps, _done(job)
    if done > steps:
        raise UsageError(
            f"{start_of(job.config)} is beyond the last step (saved: {done}, --steps {steps}); raise --steps"
        )


def _done(job: Job) -> int:
    """Steps that the run has behind it when it begins."""
    path = start_of(job.config)
    return 0 if path is None else _own(job, path).meta.step


def _own(job: Job, path: Path) -> Checkpoint:
    return checkpoint.open(path).require(job.model.identity())
