"""The status of a swarm as text: a line with the step, a table of peers, a line for each trainer; and its command."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import astuple

from rich.console import Group

from apps.common.status_page.show import POLL_S, Members, show, text
from apps.common.status_page.web import Rendering
from apps.swarm.config import read_goal
from apps.swarm.flags import Status
from apps.swarm.status.prometheus import metrics
from pipelined.membership.connection import connected
from pipelined.process.reporting.events import event_line
from pipelined.process.reporting.progress import MOMENT_S
from pipelined.swarm.records.members import Phase
from pipelined.swarm.records.steps import HEAD
from pipelined.swarm.status.reader import StatusReader
from pipelined.swarm.status.swarm_status import PeerStatus, Selection, SwarmStatus, TrainerStatus

COLUMNS = ("stage", "peer", "phase", "step", "sum", "queue", "fwd", "bwd", "share", "MiB out")
"""`sum`: microbatches of the step that the peer's sum holds; `fwd`, `bwd`: passes done."""
SHOWN_EVENTS = 5
"""The last events that are shown here; `--json` has more."""


def table(status: SwarmStatus) -> Group:
    """Everything of one status."""
    trainers = [text(_trainer(trainer)) for trainer in status.trainers]
    warnings = [text(warning, "yellow") for warning in _warnings(status)]
    progress = [text(line) for line in [*_progress(status), *_copies(status)]]
    events = [text(event_line(event.event, event.by), "dim") for event in status.events[-SHOWN_EVENTS:]]
    summary = [text(line) for line in _summary(status)]
    return Group(text(_headline(status), "bold"), *summary, _peers(status), *trainers, *progress, *warnings, *events)


def _peers(status: SwarmStatus) -> Members:
    """A line for each peer."""
    peers = sorted(status.peers, key=lambda peer: (peer.record.stage, peer.record.name))
    styles = ["" if peer.reply else "dim" for peer in peers]
    return Members(COLUMNS, [_row(peer) for peer in peers], styles, names={"peer"}, words={"phase"})


def _summary(status: SwarmStatus) -> Iterator[str]:
    """The number of members, where some of them are not shown."""
    left_out = status.left_out
    if not left_out.peers and not left_out.trainers:
        return
    phases = sum((stage.phases for stage in status.summary), Counter[Phase]())
    by_phase = ", ".join(f"{phases[phase]} {phase.name.lower()}" for phase in Phase if phases[phase])
    if serving := [stage.phases[Phase.SERVING] for stage in status.summary]:
        fewest, most = (f"{extreme(serving)} (stage {serving.index(extreme(serving))})" for extreme in (min, max))
        yield f"{phases.total()} peers of {len(serving)} stages: {by_phase}; serving a stage: {fewest} to {most}"
    peers = f"{len(status.peers)} of {len(status.peers) + left_out.peers} peers"
    trainers = f"{len(status.trainers)} of {len(status.trainers) + left_out.trainers} trainers"
    yield f"shown: {peers}, {trainers}; --stage N shows another stage, --members N more"


def _progress(status: SwarmStatus) -> Iterator[str]:
    """The phase of the current step, and the last failure, as the leader reports them."""
    leading = status.leading
    if leading and leading.phase and status.step is not None and not status.waits_for:
        yield f"step {status.step}: {leading.phase}, round {max(1, leading.attempt)}"
    if leading and leading.last_failure:
        yield f"the last failure: {leading.last_failure}"


def _copies(status: SwarmStatus) -> Iterator[str]:
    """The donors of the joining peers, and the peers that save."""
    if status.donors:
        yield "donors: " + ", ".join(f"{peer} from {donor}" for peer, donor in status.donors.items())
    stages = {peer.record.stage for peer in status.peers}
    if savers := [(stage, name) for stage, name in enumerate(status.savers) if name and stage in stages]:
        yield "savers: " + ", ".join(f"stage {stage} {name}" for stage, name in savers)


def _warnings(status: SwarmStatus) -> Iterator[str]:
    """Conditions that need an operator."""
    if unsaved := status.unsaved_stages:
        stages = ", ".join(map(str, unsaved))
        yield f"no peer saves stage {stages}: start one with --stage {unsaved[0]} --checkpoint DIR"
    for key, why in status.unreadable.items():
        yield f"the directory's record {key!r:.80} cannot be read ({why}){_remedy(key)}"


def _remedy(key: str) -> str:
    return "; if no trainer writes it anew, start one with --resume" if key == HEAD else ""


def _headline(status: SwarmStatus) -> str:
    if status.age_s > MOMENT_S:
        return f"the directory does not reply; {status.age_s:.0f} s ago: {_step_line(status)}"
    return _step_line(status)


def _step_line(status: SwarmStatus) -> str:
    waits = f"; waits for {status.waits_for}" if status.waits_for else ""
    if status.step is None:
        return f"no step yet{waits}"
    loss = f", loss {status.loss:.4f}, norm {status.norm:.3f}" if status.step else ""
    if status.eval_loss is not None:
        loss += f", eval {status.eval_loss:.4f} after {status.eval_step} steps"
    if status.steps == status.step and not waits:
        return f"after all {status.step} steps{loss}"
    if status.tokens_per_s is not None:
        loss += f", {status.tokens_per_s:.0f} tokens/s"
    steps = f"{status.step} of {status.steps}" if status.steps else status.step
    return f"after {steps} steps{loss}, {'led by ' + status.leader if status.leader else 'no leader'}{waits}"


def _row(peer: PeerStatus) -> list[str]:
    share = "" if math.isnan(peer.share) else f"{100 * peer.share:.0f} %"
    report = peer.reply.peer if peer.reply else None
    stage = report.stage if report else None
    numbers = astuple(stage) if stage else ("", "", "", "", "")
    sent = peer.reply.traffic.sent if peer.reply else 0
    record = peer.record
    return [str(record.stage), record.name, _phase(peer), *map(str, numbers), share, f"{sent / 2**20:.1f}"]


def _phase(peer: PeerStatus) -> str:
    if peer.reply is None:
        return "silent"
    if peer.reply.cut_off:
        return "cut off"
    return "cannot save" if peer.reply.peer and peer.reply.peer.unsaved else peer.phase


def _trainer(trainer: TrainerStatus) -> str:
    name, report = trainer.record.name, trainer.report
    if report is None:
        return f"trainer {name}: silent"
    role = ", leads" if report.leads else ""
    ends = [
        f"{peer} for {remaining_s:g} s" if remaining_s else f"{peer} until it announces itself"
        for peer, remaining_s in report.banned.items()
    ]
    bans = f", bans {', '.join(ends)}" if ends else ""
    done = f"{report.done} microbatches, {report.rate:.1f} a second"
    return f"trainer {name}: {done}{role}{bans}"


SWARM = Rendering[SwarmStatus]("swarm", table, metrics)


async def status(flags: Status) -> None:
    """Print the state of a swarm; with --watch or --web until it is interrupted."""
    selection = Selection(flags.members, flags.stage)
    async with connected(flags.address.url, flags.address.listen) as (endpoint, directory):
        reader = StatusReader(endpoint, directory, read_goal, selection)
        await show(flags.shown, reader.repeat(POLL_S), SWARM)
