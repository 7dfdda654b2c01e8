"""`python -m apps.ravnest status`: show the clusters once, or continuously."""

from collections.abc import Iterator
from typing import Any

from rich.console import Group

from apps.common.status_page.show import POLL_S, Members, show, text
from apps.common.status_page.web import Rendering
from apps.ravnest.flags.commands import Status
from apps.ravnest.flags.config import RavnestTask
from apps.ravnest.plan import layer_sizes
from pipelined.membership.connection import connected
from pipelined.process.reporting.progress import MOMENT_S
from pipelined.ravnest.status import RavnestStatus, TrainedSizes, follow_status

CLUSTER_COLUMNS = ("cluster", "step", "loss", "s/step")
COLUMNS = (*CLUSTER_COLUMNS, "stage", "node", "backup", "layers", "trained", "alive", "delay", "averaged MiB")


async def show_status(flags: Status) -> None:
    """Print the state of the clusters; with --watch or --web until it is interrupted."""
    async with connected(flags.address.url, flags.address.listen) as (_, directory):
        await show(flags.shown, follow_status(directory, POLL_S, sizes_of), RAVNEST)


def sizes_of(record: bytes) -> TrainedSizes:
    """What places are counted by, from the directory's record. Raises UsageError: as `RavnestTask.unpack`."""
    task = RavnestTask.unpack(record)
    settings = task.settings
    model = settings.model(task.vocabulary)
    layers = layer_sizes(model, settings.microbatch, settings.seq, settings.dtype)
    return TrainedSizes(settings.microbatches, tuple(layers))


def table(status: RavnestStatus) -> Group:
    """Everything of one status: a line for each node of each cluster."""
    rows, styles = [], []
    for number, cluster in enumerate(status.to_dict()["clusters"]):
        cells = [
            str(number),
            _step(cluster),
            _number(cluster["loss"], ".4f"),
            _number(cluster["step_s"], ".2f"),
        ]
        for stage, place in enumerate(cluster["places"]):
            rows.append([*(cells if stage == 0 else [""] * len(CLUSTER_COLUMNS)), str(stage), *_place(place)])
            styles.append("dim" if place["node"] in status.missing else "")
    members = Members(COLUMNS, rows, styles, names={"step", "node", "backup"})
    return Group(text(_headline(status), "bold"), members, *(text(line, "yellow") for line in _warnings(status)))


RAVNEST = Rendering[RavnestStatus]("ravnest", table)


def _place(place: dict[str, Any]) -> list[str]:
    """A place's columns from its node on."""
    sent_mib = None if place["averaged_bytes"] is None else place["averaged_bytes"] / 2**20
    cells = [place["node"], place["backup"] or "", f"{place['layers'][0]}-{place['layers'][1] - 1}"]
    alive = str(place["alive"])
    delay = _number(place["staleness"], ".1f")
    return [*cells, _number(place["microbatches"], "d"), alive, delay, _number(sent_mib, ",.1f")]


def _headline(status: RavnestStatus) -> str:
    age = f"the directory does not reply; {status.age_s:.0f} s ago: " if status.age_s > MOMENT_S else ""
    reason = f" ({status.wait_text})" if status.wait_text else ""
    waiting = f"; waiting: {', '.join(status.waiting)}{reason}" if status.waiting else ""
    if status.generation is None:
        return f"{age}no clusters yet{waiting}"
    furthest = status.furthest_progress
    step = f"step {furthest.step}, loss {furthest.loss:.4f}" if furthest else "no step yet"
    return f"{age}{step}, round {status.round}{waiting}"


def _warnings(status: RavnestStatus) -> Iterator[str]:
    if status.missing:
        yield f"{', '.join(status.missing)} left; `train` lets the other clusters go on, or forms new ones"
    for key, why in status.unreadable.items():
        yield f"the directory's record {key!r:.80} cannot be read ({why})"


def _step(cluster: dict[str, object]) -> str:
    if cluster["step"] is None and cluster["waits_for"]:
        return f"waits for {cluster['waits_for']}"
    return "no step yet" if cluster["step"] is None else f"{cluster['step']}{', the last' if cluster['done'] else ''}"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
