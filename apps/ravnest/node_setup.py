"""What Ravnest's processes read, save and show, for its commands and the ranks of `--schedule ravnest`. No torch."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from apps.common.run.trackers import Tracker, append
from apps.ravnest.flags.config import RavnestTask
from apps.ravnest.flags.groups import FormingFlags
from apps.ravnest.plan import pool_request
from pipelined.errors import UsageError
from pipelined.process.reporting.progress import Say
from pipelined.ravnest.node.planned_memory import PlannedPlaces
from pipelined.ravnest.records.nodes import UPDATES
from pipelined.ravnest.records.progress import ClusterProgress
from pipelined.state.stages.versions import common_step, saved_steps

if TYPE_CHECKING:
    from pipelined.ravnest.stage.saving import SaveSettings


def planned_places(task: RavnestTask, *, saves: bool) -> PlannedPlaces:
    """What a node is planned to hold in its place.

    Args:
        saves: whether it saves; then it has room for that, also in a cluster that may never save.
    """
    request = pool_request(task.settings, task.settings.model(task.vocabulary), FormingFlags(), saves=saves)
    return PlannedPlaces(request.layers, request.rules)


def saving_of(directory: Path, save_every: int, task: RavnestTask, run: str) -> "SaveSettings":
    """Where a node with --checkpoint saves.

    Args:
        save_every: rounds from one save to the next.
        run: its unique name.
    Raises:
        UsageError: stages of another run are there.
    """
    from pipelined.ravnest.stage.saving import SaveSettings
    from pipelined.state.stages.store import DiskStore, saved_stages

    stages = saved_stages(directory)
    if any(stage.version.run != run for stage in stages):
        fact = f"{directory} holds stages of another run ({saved_steps(stages)})"
        raise UsageError(f"{fact}; give --checkpoint another directory")
    identity = task.settings.model(task.vocabulary).identity()
    store = DiskStore(directory, identity, text=task.text, optimizer=task.settings.optimizer)
    return SaveSettings(store, save_every, run)


def show_steps(
    say: Say, metrics: Path | None, trackers: Sequence[Tracker] = ()
) -> Callable[[int, ClusterProgress], None]:
    """What shows each step of a cluster: a line, a JSON object in this file, and a row for each tracker."""

    def on_step(cluster: int, progress: ClusterProgress) -> None:
        delays = " ".join(f"{delay:.1f}" for delay in progress.staleness)
        say(f"step {progress.step}: loss {progress.loss:.4f}, cluster {cluster}, delays {delays}")
        row = {"step": progress.step, "loss": progress.loss, "cluster": cluster, "staleness": progress.staleness}
        row["step_s"] = progress.seconds
        if metrics is not None:
            append(metrics, row)
        for tracker in trackers:
            tracker.write(row)

    return on_step


def resumed_run(directory: Path, task: RavnestTask) -> str:
    """The name of the run that saved the latest step in a directory: that of a step with all stages, if there is one.

    Raises:
        UsageError: nothing is saved there, or it is of a swarm, or of another model, text or optimizer.
    """
    from pipelined.state.stages.store import fields_of
    from pipelined.state.stages.store_checks import optimizer_mismatch, stages_of_model, text_mismatch

    stages = stages_of_model(directory, task.settings.model(task.vocabulary).identity())
    latest = common_step(stages) or max(stages, default=None)
    if latest is None:
        fact = f"no node saved in {directory}"
        raise UsageError(f"{fact}; leave --resume out, or name the --checkpoint of a node")
    if UPDATES not in fields_of(directory, latest):
        fact = f"{directory} holds stages of a swarm (the latest: step {latest.step})"
        raise UsageError(f"{fact}; leave --resume out, or name the --checkpoint of a node")
    if text := text_mismatch(directory, stages, task.text):
        raise UsageError(f"{text}; give the --data and --tokenizer of that run")
    if optimizer := optimizer_mismatch(directory, stages, task.settings.optimizer):
        raise UsageError(f"{optimizer}; give the --optimizer of that run, or begin anew without --resume")
    return latest.version.run
