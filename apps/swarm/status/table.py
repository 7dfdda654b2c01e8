"""A look at a swarm as text: a line with the step, a table of peers, a line for each trainer."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Column, Table
from rich.text import Text

from pipelined.aio.events import line, printable, read
from pipelined.aio.progress import MOMENT_S
from pipelined.membership.records import Phase
from pipelined.swarm.records import HEAD
from pipelined.swarm.status import Report

COLUMNS = ("stage", "peer", "phase", "step", "sum", "queue", "fwd", "bwd", "share", "MiB out")
"""`sum`: microbatches of the step that the peer's sum holds; `fwd`, `bwd`: passes done."""
SHOWN_EVENTS = 5
"""The last events that are shown here; `--json` has more."""
GAP = 2
"""Characters between two columns."""


def table(look: Report) -> Group:
    """Everything of one look."""
    trainers = [_text(_trainer(each)) for each in look["trainers"]]
    warnings = [_text(each, "yellow") for each in _warnings(look)]
    progress = [_text(each) for each in [*_progress(look), *_copies(look)]]
    events = [_text(each, "dim") for each in _events(look)]
    summary = [_text(each) for each in _summary(look)]
    return Group(_text(_where(look), "bold"), *summary, Peers(look["peers"]), *trainers, *progress, *warnings, *events)


def _text(line: str, style: str = "") -> Text:
    """A line or cell to print. Names, phases and reasons come from the network, so control characters are replaced."""
    return Text(printable(line, but=""), style=style)


def _summary(look: Report) -> Iterator[str]:
    """The number of members, where some of them are not shown."""
    left_out = look.get("left_out", {})
    if not any(left_out.values()):
        return
    stages = [{phase: stage[phase] for phase in Phase} for stage in look["summary"]]
    phases = Counter[str]()
    for stage in stages:
        phases.update(stage)
    by_phase = ", ".join(f"{count} {phase}" for phase, count in phases.items() if count)
    serving = [stage[Phase.SERVING] for stage in stages]
    fewest, most = (f"{many(serving)} (stage {serving.index(many(serving))})" for many in (min, max))
    yield f"{phases.total()} peers of {len(stages)} stages: {by_phase}; serving a stage: {fewest} to {most}"
    shown = [f"{len(look[kind])} of {len(look[kind]) + left_out[kind]} {kind}" for kind in ("peers", "trainers")]
    yield f"shown: {', '.join(shown)}; --stage N shows another stage, --members N more"


def _progress(look: Report) -> Iterator[str]:
    """The phase of the current step, and the last failure, as the leader reports them."""
    if look.get("step_phase") and look["step"] is not None and not look["waits_for"]:
        yield f"step {look['step'] + 1}: {look['step_phase']}, attempt {max(1, look['attempt'] or 1)}"
    if look.get("last_failure"):
        yield f"the last failure: {look['last_failure']}"


def _copies(look: Report) -> Iterator[str]:
    """The donors of the joining peers, and the peers that save."""
    if donors := look.get("donors"):
        yield "donors: " + ", ".join(f"{peer} from {donor}" for peer, donor in donors.items())
    stages = {peer["stage"] for peer in look["peers"]}
    if savers := [(stage, name) for stage, name in enumerate(look.get("savers") or []) if name and stage in stages]:
        yield "savers: " + ", ".join(f"stage {stage} {name}" for stage, name in savers)


def _events(look: Report) -> Iterator[str]:
    for report in look.get("events", [])[-SHOWN_EVENTS:]:
        if event := read(report):
            yield line(event, report["by"])


def _warnings(look: Report) -> Iterator[str]:
    """Conditions that need an operator."""
    if unsaved := look.get("unsaved_stages"):
        stages = ", ".join(map(str, unsaved))
        yield f"no peer saves stage {stages}: start one with --stage {unsaved[0]} --checkpoint DIR"
    for key, why in look.get("unreadable", {}).items():
        yield f"the directory's record {key!r:.80} cannot be read ({why}){_remedy(key)}"


def _remedy(key: str) -> str:
    return "; if no trainer writes it anew, start one with --resume" if key == HEAD else ""


class Peers:
    """A line for each peer. On a narrow terminal names wrap, and the last columns are left out."""

    def __init__(self, peers: Sequence[Report]):
        self._peers = sorted(peers, key=lambda peer: (peer["stage"], peer["name"]))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = [_row(peer) for peer in self._peers]
        columns = [_column(*each) for each in zip(COLUMNS, *rows, strict=True)]
        while sum(column.min_width + GAP for column in columns) - GAP > options.max_width and len(columns) > 2:
            columns.pop()
        peers = Table(*columns, box=None, pad_edge=False)
        for peer, row in zip(self._peers, rows, strict=True):
            peers.add_row(*map(_text, row[: len(columns)]), style="dim" if peer["silent"] else "")
        yield peers


def _column(name: str, *cells: str) -> Column:
    if name == "peer":
        return Column(name, overflow="fold", min_width=len("trainer0"))
    widest = max(map(len, (name, *cells)))
    return Column(name, no_wrap=True, justify="left" if name == "phase" else "right", min_width=widest)


def _where(look: Report) -> str:
    if look.get("past_s", 0.0) > MOMENT_S:
        return f"the directory does not reply; {look['past_s']:.0f} s ago: {_stood(look)}"
    return _stood(look)


def _stood(look: Report) -> str:
    waits = f"; waits for {look['waits_for']}" if look["waits_for"] else ""
    if look["step"] is None:
        return f"no step yet{waits}"
    loss = f", loss {look['loss']:.4f}, norm {look['norm']:.3f}" if look["step"] else ""
    if look["eval_loss"] is not None:
        loss += f", eval {look['eval_loss']:.4f} at step {look['eval_step']}"
    if look["steps"] == look["step"] and not waits:
        return f"step {look['step']}, the last{loss}"
    if look["tokens_per_s"] is not None:
        loss += f", {look['tokens_per_s']:.0f} tokens/s"
    step = f"{look['step']} of {look['steps']}" if look["steps"] else look["step"]
    return f"step {step}{loss}, {'led by ' + look['conductor'] if look['conductor'] else 'no leader'}{waits}"


def _row(peer: Report) -> list[str]:
    share = "" if math.isnan(peer["share"]) else f"{100 * peer['share']:.0f} %"
    numbers = [str(peer.get(name, "")) for name in ("step", "counted", "waiting", "forwards", "backwards")]
    return [str(peer["stage"]), peer["name"], _phase(peer), *numbers, share, f"{peer.get('sent', 0) / 2**20:.1f}"]


def _phase(peer: Report) -> str:
    if peer["silent"]:
        return "silent"
    if peer.get("cut_off"):
        return "cut off"
    return "cannot save" if peer.get("unsaved") else peer["phase"]


def _trainer(trainer: Report) -> str:
    if trainer["silent"]:
        return f"trainer {trainer['name']}: silent"
    leads = ", leads" if trainer.get("leads") else ""
    banned = ", ".join(f"{address} for {left:g} s" for address, left in trainer.get("banned", {}).items())
    done = f"{trainer.get('done', 0)} microbatches, {trainer.get('rate', 0.0):.1f} a second"
    return f"trainer {trainer['name']}: {done}{leads}{f', bans {banned}' if banned else ''}"
