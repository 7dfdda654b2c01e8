"""Jobs in which the ranks are members of a system that is no pipeline: refused flags, and checks of saved stages.

Swarms and Ravnest's clusters share them. No torch.
"""

from collections.abc import Mapping

from apps.common.flags.command_flags import check_directories, check_files
from apps.common.flags.paths import check_export
from apps.common.flags.run_flags import flag
from apps.common.lm.data.text import Text
from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.common.run.trackers import check_trackers
from apps.gpt2.config import GPT2Flags
from pipelined.errors import UsageError
from pipelined.ravnest.records.nodes import UPDATES
from pipelined.state.checkpoints import checkpoint
from pipelined.state.stages.store import fields_of
from pipelined.state.stages.store_checks import optimizer_mismatch, stages_of_model, text_mismatch
from pipelined.state.stages.versions import common_step, saved_steps

MODEL_FIELDS = ("layers", "d_model", "heads", "positions", "dropout")
"""Fields of a system's settings with the name and value of a field of the model."""
MISSING = {"float16": "a loss scale", "bfloat16-parameters": "float32 copies of the parameters"}
"""What the members of a system lack for these values of --dtype."""


def refuse_flags(config: GPT2Flags, system: str) -> None:
    """Refuse another start than saved stages, a training without a step, and a dtype that members cannot train in.

    Args:
        system: what trains, for the message.
    """
    if config.resume not in (None, "auto"):
        fact = f"{system} resumes from what all stages saved under --checkpoint, not from {config.resume}"
        raise UsageError(f"{fact}; give --checkpoint that directory, and --resume auto")
    if config.steps == 0:
        fact = f"{system} that takes no step has nothing to do (--steps 0)"
        raise UsageError(f"{fact}; leave --schedule {config.schedule} out to evaluate or export")
    if (need := MISSING.get(config.dtype)) is not None:
        raise UsageError(f"--dtype {config.dtype} needs {need}, and {system} has none; give --dtype bfloat16")


def refuse_meaningless(config: GPT2Flags, meaningless: Mapping[str, str], system: str) -> None:
    """Refuse flags that mean nothing to what trains here.

    Args:
        meaningless: the reason, by field.
        system: what trains, for the message.
    Raises:
        UsageError: one of them has another value than its default.
    """
    default = type(config)()
    for name, reason in meaningless.items():
        if (value := getattr(config, name)) != getattr(default, name):
            shown_flag = flag(name) if value is True else f"{flag(name)} {value}"
            raise UsageError(f"{shown_flag} means nothing to {system}: {reason}; leave it out")


def check_paths(config: GPT2Flags, model: ModelConfig) -> None:
    """Refuse paths that cannot be written, or that hold what the job would overwrite or cannot go on from.

    Raises:
        UsageError: the first mistake found, with its remedy.
    """
    check_files(metrics=config.metrics)
    check_trackers(config)
    if config.export is not None:
        check_export(config.export)
    check_directories(checkpoint=config.checkpoint)
    check_saved_stages(config, model)


def check_saved_stages(config: GPT2Flags, model: ModelConfig) -> None:
    """Refuse a directory with stages of another model, schedule or earlier run, or of a step beyond the last.

    Raises:
        UsageError: as above.
    """
    path = config.checkpoint
    if path is None:
        return
    newest = checkpoint.latest(path)
    if newest is not None:
        fact = f"{path} holds checkpoints of a pipeline, and none of stages of --schedule {config.schedule}"
        raise UsageError(f"{fact} ({newest.name}); give --checkpoint another directory")
    stages = stages_of_model(path, model.identity())
    latest = common_step(stages)
    if config.schedule == "ravnest":  # a rank's directory may hold its own stages alone
        latest = latest or max(stages, default=None)
    if latest is None and stages:
        fact = f"{path} holds no step that all stages saved; nothing can be resumed ({saved_steps(stages)})"
        raise UsageError(f"{fact}; give --checkpoint another directory, or remove this one to begin anew")
    if latest is None:
        return
    saved_by = "ravnest" if UPDATES in fields_of(path, latest) else "swarm"
    if saved_by != config.schedule:
        fact = f"{path} holds stages of --schedule {saved_by} (the latest: step {latest.step})"
        raise UsageError(f"{fact}; give --checkpoint another directory, or go on from it with --schedule {saved_by}")
    if config.schedule == "ravnest" and (fact := optimizer_mismatch(path, stages, "adamw")):
        raise UsageError(f"{fact}; give --checkpoint another directory, or go on with `apps.ravnest`")
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
    if fact := text_mismatch(config.checkpoint, stages_of_model(config.checkpoint, model.identity()), text.digest):
        raise UsageError(f"{fact}; give that run's --data and --tokenizer, or add --new-data to go on with these")
