"""The course of a run on its page, as SVG: loss and tokens/s by step, and what each process did in the last steps."""

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pipelined.errors import printable

STYLE = (
    "figure{margin:1em 0}svg{font-size:11px;display:block}polyline{fill:none;stroke:#0055cc;stroke-width:1.5}"
    "rect{fill:#d0d0d0}.passes{fill:#0055cc}.counting{fill:#a8c8a8}.preparing{fill:#e8c860}.summing{fill:#d07040}"
)
"""How a page shows the drawings."""
MAX_STEPS = 1000
"""Steps of a curve; of more every second one is dropped, so that a curve always spans the run."""
MAX_SNAPSHOTS, ROWS = 60, 24
"""The last statuses of a timeline, and the most processes of it."""
WIDTH, HEIGHT, ROW, LABEL = 900, 140, 16, 40
"""Pixels of a curve, of a row of the timeline, and at least from one number of a step to the next."""


@dataclass(frozen=True)
class Snapshot:
    """The present, as a status describes it.

    Args:
        at: seconds by any clock.
        phase: the phase of the step after this one.
        passes: how many passes each process has done, by its name.
    """

    at: float
    step: int
    phase: str
    passes: Mapping[str, int]


class Course:
    """The statuses of a run, one after another. What it keeps is replaced, not changed: another thread may draw it."""

    def __init__(self) -> None:
        self._steps: dict[int, tuple[float | None, float | None]] = {}
        self._snapshots: tuple[Snapshot, ...] = ()

    def add(self, at: float, status: Mapping[str, Any]) -> None:
        """Add a status as JSON shows it; a run that goes back to an earlier step continues the curve there.

        Args:
            at: seconds by any clock.
        """
        step = status.get("step")
        if step is None:
            return
        steps = {earlier_step: values for earlier_step, values in self._steps.items() if earlier_step < step}
        if len(steps) >= MAX_STEPS:
            steps = dict([*steps.items()][::2])  # half as fine
        if step:  # before the first one there is no loss
            steps[step] = status.get("loss"), status.get("tokens_per_s")
        peers = [peer for peer in status.get("peers", [])[:ROWS] if "forwards" in peer]
        passes = {peer["name"]: peer["forwards"] + peer["backwards"] for peer in peers}
        self._steps = steps
        if "step_phase" in status:  # else its steps have none, as Ravnest's
            snapshot = Snapshot(at, step, status["step_phase"] or "", passes)
            self._snapshots = (*self._snapshots[1 - MAX_SNAPSHOTS :], snapshot)

    def draw(self) -> str:
        """All so far as HTML; "" until two statuses tell of steps."""
        curves = [_curve(name, self._values(number)) for number, name in enumerate(("loss", "tokens/s"))]
        return "".join([*curves, _timeline(self._snapshots)])

    def _values(self, number: int) -> list[tuple[int, float]]:
        """A curve: the step and the value, where there is one."""
        values = ((step, figures[number]) for step, figures in self._steps.items())
        return [(step, value) for step, value in values if value is not None and math.isfinite(value)]


def _curve(name: str, values: Sequence[tuple[int, float]]) -> str:
    """A line through values by step, with the first and last step, and the extremes."""
    if len(values) < 2:
        return ""
    first_step = values[0][0]
    last_step = values[-1][0]
    span = last_step - first_step
    low, high = (pick(value for _, value in values) for pick in (min, max))
    places = " ".join(
        f"{WIDTH * (step - first_step) / span:.1f},{HEIGHT * (high - value) / ((high - low) or 1):.1f}"
        for step, value in values
    )
    marks = [
        (-4, 10, "end", f"{high:.4g}"),
        (-4, HEIGHT, "end", f"{low:.4g}"),
        (0, HEIGHT + 16, "start", f"{first_step}"),
    ]
    texts = [_text(*mark) for mark in [*marks, (WIDTH, HEIGHT + 16, "end", f"step {last_step}")]]
    return _svg(name, HEIGHT, [f'<polyline points="{places}"/>', *texts])


def _timeline(snapshots: Sequence[Snapshot]) -> str:
    """A row of the steps with the phase of each, and one for each process: the darker, the more passes it did."""
    if len(snapshots) < 2:
        return ""
    names = list(dict.fromkeys(name for snapshot in snapshots for name in snapshot.passes))
    elements = [_text(-4, ROW * (row + 1) - 3, "end", name) for row, name in enumerate(["step", *names])]
    start = snapshots[0].at
    seconds = (snapshots[-1].at - snapshots[0].at) or 1.0
    label_x = float(-LABEL)
    for before, after in pairwise(snapshots):
        x, right = (WIDTH * (snapshot.at - start) / seconds for snapshot in (before, after))
        elements += _cells(before, after, names, x, right - x)
        if before.step != after.step and right - label_x >= LABEL:
            elements.append(_text(right, -2, "end", str(after.step)))
            label_x = right
    return _svg("the last steps", ROW * (len(names) + 1), elements)


def _cells(before: Snapshot, after: Snapshot, names: Sequence[str], x: float, width: float) -> Iterator[str]:
    """What was done between two statuses."""
    done = {name: after.passes[name] - before.passes.get(name, 0) for name in after.passes}
    most_passes = max([1, *done.values()])
    phase = after.phase or "idle"
    yield _cell(x, 0, width, kind=phase, share=1.0, title=f"step {after.step + 1}: {phase}")
    for row, name in enumerate(names, 1):
        if (passes := done.get(name, 0)) > 0:  # a peer that changed its stage begins anew
            yield _cell(x, row, width, kind="passes", share=passes / most_passes, title=f"{name}: {passes} passes")


def _cell(x: float, row: int, width: float, *, kind: str, share: float, title: str) -> str:
    place = f'x="{x:.1f}" y="{ROW * row}" width="{width:.1f}" height="{ROW - 2}"'
    what = f'class="{_escape(kind)}" fill-opacity="{share:.2f}"'
    return f"<rect {place} {what}><title>{_escape(title)}</title></rect>"


def _text(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_escape(text)}</text>'


def _svg(name: str, height: int, elements: Sequence[str]) -> str:
    box = f'viewBox="-160 -14 {WIDTH + 170} {height + 34}" width="{WIDTH + 170}"'
    return f"<figure><figcaption>{name}</figcaption><svg {box}>{''.join(elements)}</svg></figure>"


def _escape(text: str) -> str:
    """Text from the network, for a page."""
    return html.escape(printable(text, but=""))
