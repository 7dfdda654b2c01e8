"""Checks of a job before torch is imported: its inputs can be read, and its outputs can be written.

Rank 0 alone runs them, before any rank builds anything, so a mistake is reported once and nothing is overwritten.
"""

from pathlib import Path

from apps.common.flags.command_flags import check_files
from apps.common.flags.paths import check_export
from apps.common.flags.run_flags import start_of
from apps.common.run.checks import check_run
from apps.gpt2.job import GPT2Job
from pipelined.errors import UsageError
from pipelined.state.checkpoints import checkpoint
from pipelined.state.checkpoints.checkpoint import open_checkpoint
from pipelined.training.segments.replay import check_steps, read_orders

MEASURED = "measured"
"""Instead of an all-reduce: measure all, and take the fastest."""


def check_job(job: GPT2Job) -> None:
    """Refuse a job that would fail later, or overwrite files of another.

    Raises:
        UsageError: the first mistake found, with its remedy.
    Cost: as `check_run`.
    """
    config = job.config
    path = start_of(job.config)
    if config.divides and config.all_reduce == MEASURED:
        fact = "--shard-optimizer needs sums that are scattered, and --all-reduce measured may find others"
        raise UsageError(f"{fact}; use --all-reduce auto")
    check_run(config, job.plan, other_sums=[MEASURED])
    check_files(trace=config.trace)
    done = 0 if path is None else open_checkpoint(path).require(job.model.identity()).meta.step
    if config.replay is not None:
        check_steps(read_orders(config.replay, job.plan), job.plan, range(done, config.steps))
    if config.export is not None:
        check_export(config.export)
    if config.checkpoint is not None:
        check_continued(job, config.checkpoint)


def check_continued(job: GPT2Job, path: Path) -> None:
    """Refuse a checkpoint directory that holds another model, or an earlier run that this one does not continue."""
    remedy = "add --resume auto to go on from it, or give --checkpoint another directory"
    checkpoint.require_continued(path, job.model.identity(), start_of(job.config), remedy)
