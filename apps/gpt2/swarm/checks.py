"""Checks of a swarm's job before torch is imported, as `apps.gpt2.checks` has them for other jobs.

Those of saved stages serve Ravnest's clusters, too.
"""

from apps.common.paths import check_directory, check_export, check_file
from apps.common.trackers import check_trackers
from apps.gpt2.config import GPT2Flags
from apps.gpt2.swarm.job import SwarmJob
from apps.gpt2.text import text_of
from apps.lm.data.text import Text
from apps.lm.models.gpt2_presets import ModelConfig
from apps.swarm.data import feed_of
from pipelined.errors import UsageError
from pipelined.ravnest.records import UPDATES
from pipelined.state.checkpoints import checkpoint
from pipelined.state.saved import other_text, saved_of
from pipelined.state.store import fields_of
from pipelined.state.versions import common_step, saved_steps
from pipelined.training.exchange.compression import check_codec


def check_swarm_job(job: SwarmJob) -> None:
    """Refuse a job that would fail later, or overwrite files of another.

    Raises:
        UsageError: the first mistake found, with its remedy.
    """
    config = job.config
    check_codec(config.compress, "--compress")
    if config.metrics is not None:
        check_file("--metrics", config.metrics)
    check_trackers(config)
    if config.export is not None:
        check_export(config.export)
    if config.checkpoint is not None:
        check_directory("--checkpoint", config.checkpoint)
    check_saved_stages(config, job.model)


def read_swarm_text(job: SwarmJob) -> Text:
    """Read the text of a job.

    Raises:
        UsageError: the text cannot be read, is too short, has more symbols than the model, or differs from the text of
            the saved stages.
    """
    text, subject = text_of(job.config, job.model), job.subject
    check_saved_text(job.config, job.model, text)
    feed_of(text, subject.microbatch, subject.seq, subject.batch // subject.microbatch, subject.seed)
    return text


def check_saved_stages(config: GPT2Flags, model: ModelConfig) -> None:
    """Refuse a directory with stages of another model, schedule or earlier run, or of a step beyond the last.

    Raises:
        UsageError: as above.
    """
    path = config.checkpoint
    if path is None:
        return
    if (newest := checkpoint.latest(path)) is not None:
        fact = f"{path} holds checkpoints of a pipeline, and none of stages of --schedule {config.schedule}"
        raise UsageError(f"{fact} ({newest.name}); give --checkpoint another directory")
    saved = saved_of(path, model.identity())
    latest = common_step(saved)
    if config.schedule == "ravnest":  # a rank's directory may hold its own stages alone
        latest = latest or max(saved, default=None)
    if latest is None and saved:
        fact = f"{path} holds no step that all stages saved; nothing can be resumed ({saved_steps(saved)})"
        raise UsageError(f"{fact}; give --checkpoint another directory, or remove this one to begin anew")
    if latest is None:
        return
    if (saved_by := "ravnest" if UPDATES in fields_of(path, latest) else "swarm") != config.schedule:
        fact = f"{path} holds stages of --schedule {saved_by} (the latest: step {latest.step})"
        raise UsageError(f"{fact}; give --checkpoint another directory, or go on from it with --schedule {saved_by}")
    if config.resume is None:
        fact = f"{path} holds checkpoints of an earlier run (the latest: step {latest.step})"
        raise UsageError(f"{fact}; add --resume auto to go on from it, or give --checkpoint another directory")
    if latest.step > config.steps:
        raise UsageError(
            f"{path} is beyond the last step (saved: {latest.step}, --steps {config.steps}); raise --steps"
        )


def check_saved_text(config: GPT2Flags, model: ModelConfig, text: Text) -> None:
    """Raises UsageError: the run that is resumed had another text or tokenizer, and no --new-data is given."""
    if config.checkpoint is None or config.resume is None or config.new_data:
        return
    if fact := other_text(config.checkpoint, saved_of(config.checkpoint, model.identity()), text.digest):
        raise UsageError(f"{fact}; give that run's --data and --tokenizer, or add --new-data to go on with these")
