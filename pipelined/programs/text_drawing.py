"""Programs as text, one row per worker: drawn to scale, or with arrows at its faults."""

from collections.abc import Iterator, Mapping, Sequence

from pipelined.programs.instructions import Instruction, Program
from pipelined.programs.pricing.timeline import Timed, Timeline

MAX_COLUMNS = 2000  # the most characters in a row; cells that are then too narrow have no label
MIN_COLUMNS = 20  # characters of a row in a narrow terminal
MAX_WHOLE = 24  # a faulty worker with at most this many instructions is shown whole
SHOWN_AROUND = 8  # instructions shown on each side of a fault in a longer one


def timeline_grid(timeline: Timeline, columns: int | None = None) -> str:
    """Each worker's instructions to scale, as op and microbatch; the row begins with the worker's stages.

    Args:
        columns: the most characters in a line; longer rows continue below. None: no limit.

    ```
    worker 0 (0 3)  |F0|F1|F2|  |B2   |F3|B3   |     |B0   |B1   |
    ```
    """
    per_second = _per_second(timeline)
    stage_map = timeline.stage_map
    titles = [f"worker {w} ({' '.join(map(str, stage_map.stages_of(w)))})" for w in range(stage_map.workers)]
    width = max(map(len, titles))
    rows = [_row(timeline, timed, per_second) for timed in timeline.workers]
    longest = max(map(len, rows))
    room = longest if columns is None else max(MIN_COLUMNS, columns - width - 2)
    titled_rows = [(f"{title:{width}}  ", row) for title, row in zip(titles, rows, strict=True)]
    blocks = ([f"{title}{row[x : x + room]}".rstrip() for title, row in titled_rows] for x in range(0, longest, room))
    return "\n\n".join(map("\n".join, blocks))


def fault_grid(program: Program, marks: Mapping[tuple[int, int], str]) -> str:
    """The rows of the marked workers, with an arrow and a note under each marked instruction.

    A long row shows only the instructions around the marks.

    Args:
        marks: (worker, position) to a note; a position just past the end points after the last instruction.
    """
    rows: list[str] = []
    for worker in sorted({worker for worker, _ in marks}):
        notes = {position: note for (marked_worker, position), note in sorted(marks.items()) if marked_worker == worker}
        rows += _arrow_lines(f"worker {worker} | ", program.workers[worker], notes)
    return "\n".join(rows)


def _arrow_lines(title: str, instructions: Sequence[Instruction], notes: Mapping[int, str]) -> Iterator[str]:
    """A worker's line, and a line for each note below it."""
    count = len(instructions)
    line = title
    columns = {}
    margin = SHOWN_AROUND if count > MAX_WHOLE else count
    shown_positions = {p for mark in notes for p in range(max(0, mark - margin), min(count, mark + margin + 1))}
    for position in range(count):
        if position in shown_positions:
            columns[position] = len(line)
            line += f"{instructions[position]!r} "
        elif position - 1 in shown_positions or not position:
            line += "… "
    yield line.rstrip()
    for position, note in notes.items():
        yield f"{' ' * columns.get(position, len(line))}^ {note}"


def _per_second(timeline: Timeline) -> float:
    """Characters per second: just enough for the longest label in the shortest cell."""
    timed_instructions = [timed for worker in timeline.workers for timed in worker if timed.end > timed.start]
    if not timed_instructions:
        return 0.0
    shortest = min(timed.end - timed.start for timed in timed_instructions)
    longest = max(len(_label(timeline, timed)) for timed in timed_instructions)
    return min((longest + 1) / shortest, MAX_COLUMNS / timeline.makespan)


def _label(timeline: Timeline, timed: Timed) -> str:
    """Op and microbatch (its number determines the pipe); the stage too if a worker holds two stages of one pipe."""
    stage_map, instruction = timeline.stage_map, timed.instruction
    return (
        f"{instruction.stage if stage_map.has_several_stages_of_a_pipe else ''}{instruction.op}{instruction.microbatch}"
    )


def _row(timeline: Timeline, worker: tuple[Timed, ...], per_second: float) -> str:
    row = [" "] * (round(timeline.makespan * per_second) + 1)
    for timed in worker:
        start, end = round(timed.start * per_second), round(timed.end * per_second)
        row[start] = row[end] = "|"
        room = end - start - 1
        label = _label(timeline, timed)
        if 0 < len(label) <= room:
            row[start + 1 : end] = label.ljust(room)
    return "".join(row)
