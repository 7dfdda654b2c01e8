"""Schedules as text: a timeline drawn to scale, and a program with arrows at what is wrong with it.

The rule: one row a worker, one line a row, plain characters; whoever wants pictures draws them elsewhere.
"""

from collections.abc import Mapping

from pipelined.program import Program
from pipelined.timeline import Timed, Timeline

WIDEST = 2000  # characters in a row, beyond which cells lose their labels


def timeline_grid(timeline: Timeline) -> str:
    """Each worker's instructions to scale, as F or B and the microbatch, with the stages it holds before them.

    ```
    worker 0 (0 3)  |F0|F1|F2|  |B2   |F3|B3   |     |B0   |B1   |
    ```
    """
    per_second = _per_second(timeline)
    heads = [f"worker {w} ({' '.join(map(str, timeline.layout.stages_of(w)))})" for w in range(timeline.layout.workers)]
    width = max(map(len, heads))
    rows = [_row(timeline, timed, per_second) for timed in timeline.workers]
    return "\n".join(f"{head:{width}}  {row}".rstrip() for head, row in zip(heads, rows, strict=True))


def fault_grid(program: Program, marks: Mapping[tuple[int, int], str]) -> str:
    """The workers concerned, in program order, with an arrow and a note under each marked instruction.

    Args:
        marks: (worker, position) to a note; a position just past the end points behind the last instruction.
    """
    rows = []
    for worker in sorted({worker for worker, _ in marks}):
        cells, head = [repr(instruction) for instruction in program.workers[worker]], f"worker {worker} | "
        rows.append((head + " ".join(cells)).rstrip())
        for position in sorted(position for marked, position in marks if marked == worker):
            before = " " * (len(head) + sum(len(cell) + 1 for cell in cells[:position]))
            rows.append(f"{before}^ {marks[worker, position]}")
    return "\n".join(rows)


def _per_second(timeline: Timeline) -> float:
    """Characters a second: just enough for the longest label in the shortest cell."""
    everything = [timed for worker in timeline.workers for timed in worker if timed.end > timed.start]
    if not everything:
        return 0.0
    shortest = min(timed.end - timed.start for timed in everything)
    longest = max(len(_label(timeline, timed)) for timed in everything)
    return min((longest + 1) / shortest, WIDEST / timeline.makespan)


def _label(timeline: Timeline, timed: Timed) -> str:
    """The microbatch number says which pipe; the stage is named only where a worker holds two of one pipe."""
    layout, instruction = timeline.layout, timed.instruction
    several = len(layout.placement) > layout.pipes * layout.workers
    return f"{instruction.stage if several else ''}{instruction.op}{instruction.microbatch}"


def _row(timeline: Timeline, worker: tuple[Timed, ...], per_second: float) -> str:
    row = [" "] * (round(timeline.makespan * per_second) + 1)
    for timed in worker:
        first, last = round(timed.start * per_second), round(timed.end * per_second)
        row[first] = row[last] = "|"
        room = last - first - 1
        label = _label(timeline, timed)
        if 0 < len(label) <= room:
            row[first + 1 : last] = label.ljust(room)
    return "".join(row)
