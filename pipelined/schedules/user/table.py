"""Schedules as CSV tables: one row per worker; each cell names a stage, an action and a microbatch, as in `2F0`.

This is the notation of torch.distributed.pipelining. Its compute-only tables can be read without change:
- A blank cell is an idle moment there; here it is skipped.
- `2REDUCE_GRAD` starts the gradient sum of stage 2. Without it the runtime decides when the sum starts, as it does for
  every other schedule that does not say so itself.
- Actions on messages and shards (SEND_F, UNSHARD and similar) are skipped and counted: the runtime does these without
  an instruction.
- The two actions of `(0F1;1B0)OVERLAP_F_B` run one after the other.

Two additions are our own; torch does not read them. With several pipes a cell ends in its pipe: `2F0p1`. A first row
`updates every 4 delay 1` marks a table without a flush; its rows are a segment, not a step.

A table is a schedule for one shape only; a table without a flush takes a segment of any length.
"""

import csv
import io
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

from pipelined.schedules.parts.knobs import AHEAD, CHUNKS, PIPES, SCALE
from pipelined.schedules.parts.stage_map import FLUSH, ScheduleError, Shape, StageMap, Updates
from pipelined.schedules.parts.worker import EVERY, SUM, InstructionKey, Worker

COMPUTATION = re.compile(r"(\d{1,18})([FBIW])(\d{1,18})(?:p(\d{1,18}))?")
SUMMED = re.compile(r"(\d{1,18})REDUCE_GRAD\d*")
IMPLICIT = re.compile(r"\d+(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD)\d*")
OVERLAP = re.compile(r"\(([^()]*)\)OVERLAP_F_B")
UPDATES = re.compile(r"updates every ([1-9]\d{0,17})(?: delay (\d{1,18}))?")
NOTATION = "write stage, action (F, B, I or W) and microbatch as in 2F0 (2F0p1 names a pipe), or a sum as 2REDUCE_GRAD"


@dataclass(frozen=True)
class TableSchedule:
    """A schedule read from a table.

    Args:
        name: the path of the file.
        rows: the instructions of each worker, in order.
        omissions: the omitted actions of messages and shards, and how often each occurred.
        updates: when weights are updated, from the first row of a table without a flush.
    """

    name: str
    rows: tuple[tuple[InstructionKey, ...], ...]
    omissions: Counter[str]
    updates: Updates = FLUSH

    @property
    def __name__(self) -> str:
        return self.name

    @cached_property
    def shape(self) -> Shape:
        """The one shape that the table takes. Without a flush the whole table counts as one step here; other numbers of
        microbatches are taken too. Raises ScheduleError: a stage or pipe has no instruction in the table."""
        self._require_no_gaps()
        (depth, pipes) = self._sizes
        stage_counts = Counter((worker, pipe) for (pipe, _), worker in self._holders.items())
        knobs = {PIPES.name: pipes, CHUNKS.name: max(stage_counts.values())}
        return Shape(depth, len({(c[1], c[3]) for c in self._cells}), knobs)

    def _require_no_gaps(self) -> None:
        depth, pipes = self._sizes
        for pipe, stage in ((pipe, stage) for pipe in range(pipes) for stage in range(depth)):
            if (pipe, stage) not in self._holders:
                fact = f"{self.name} does nothing in stage {stage} of pipe {pipe} (stages: {depth}, pipes: {pipes})"
                raise ScheduleError(f"{fact}; number both from 0 without a gap")

    def stage_map(self, shape: Shape) -> StageMap:
        """Each stage on the worker that has most of its instructions.

        Raises:
            ScheduleError: the caller requests another shape, a stage or pipe has no instruction in the table, or the
                rows of a table without a flush cannot be repeated.
        """
        self._require_shape(shape)
        depth, pipes = self._sizes
        placement = dict(sorted(self._holders.items()))
        microbatches = tuple(tuple(sorted({c[3] for c in self._cells if c[1] == pipe})) for pipe in range(pipes))
        if not self.updates.flushes:
            require_segment(self.name, self.rows, microbatches, self.updates)
            microbatches = (tuple(range(shape.steps * shape.microbatches)),)
        return StageMap(depth, len(self.rows), placement, microbatches, updates=self.updates)

    async def schedule(self, worker: Worker) -> None:
        """Run the worker's row: one step, or one segment where there is no flush."""
        if not self.updates.flushes:
            return await run_segment(worker, self.rows[worker.index], self.shape.microbatches)
        for cell in self.rows[worker.index]:
            await worker.do(*cell)

    @cached_property
    def _cells(self) -> list[InstructionKey]:
        """The computations."""
        return [cell for row in self.rows for cell in row if cell[0] != SUM]

    @cached_property
    def _sizes(self) -> tuple[int, int]:
        """(stages, pipes)."""
        return 1 + max(stage for _, _, stage, _ in self._cells), 1 + max(pipe for _, pipe, _, _ in self._cells)

    @cached_property
    def _holders(self) -> dict[tuple[int, int], int]:
        """(pipe, stage) to the worker with most of its instructions; so the check reports a stray instruction."""
        votes: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
        for worker, row in enumerate(self.rows):
            for op, pipe, stage, _ in row:
                if op != SUM:
                    votes[pipe, stage][worker] += 1
        return {place: workers.most_common(1)[0][0] for place, workers in votes.items()}

    def _require_shape(self, shape: Shape) -> None:
        table_shape = self.shape
        microbatches = table_shape.microbatches if self.updates.flushes else shape.microbatches
        sizes: list[tuple[str, Any, Any]] = [
            ("depth", shape.depth, table_shape.depth),
            ("microbatches", shape.microbatches, microbatches),
        ]
        for knob in (PIPES, CHUNKS, SCALE, AHEAD):  # a default leaves it to the table
            value = knob.of(shape)
            sizes += [(knob.name, value, knob.of(table_shape))] * (value != knob.default)
        for name, value, table_value in sizes:
            if value != table_value:
                fact = f"{self.name} is a table of one shape ({name}: {value}, its own: {table_value})"
                raise ScheduleError(
                    f"{fact}; use `depth={table_shape.depth}` and `microbatches={table_shape.microbatches}`"
                )


def read_table(path: Path) -> TableSchedule:
    """Read a table.

    Raises:
        ScheduleError: no such file, not a table, or a cell that cannot be read; the message names row and column.
    """
    omissions: Counter[str] = Counter()
    try:
        lines = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8-sig"))))
    except (OSError, ValueError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ScheduleError(f"cannot read the table {path} ({reason}); give a CSV file with a row a worker") from error
    while lines and not any(map(str.strip, lines[-1])):
        lines.pop()
    updates = _updates(lines[0]) if lines else FLUSH
    start = 1 if updates.flushes else 2
    rows = tuple(tuple(_row(path, number, line, omissions)) for number, line in enumerate(lines[start - 1 :], start))
    empty_row = next((number for number, row in enumerate(rows, start) if all(cell[0] == SUM for cell in row)), None)
    if empty_row or not rows:
        raise ScheduleError(f"{path}, row {empty_row or start}: there is no instruction; give every worker some")
    return TableSchedule(str(path), rows, omissions, updates)


def write_table(stage_map: StageMap, rows: Iterable[Iterable[InstructionKey]]) -> str:
    """A table that `read_table` reads again as the same rows, if every pipe has a microbatch.

    Raises:
        ScheduleError: microbatches are cut into pieces, which a table cannot express.
    """
    if stage_map.pieces != 1:
        fact = f"a table cannot say that microbatches are cut (pieces: {stage_map.pieces})"
        raise ScheduleError(f"{fact}; use `scale=direct` or forward-doubling")
    has_pipes = stage_map.pipes > 1
    updates = stage_map.updates
    delay = "" if updates.delay is None else f" delay {updates.delay}"
    first_lines = [] if updates.flushes else [f"updates every {updates.every}{delay}"]
    lines = (",".join(_text(cell, has_pipes) for cell in row) for row in rows)
    return "".join(f"{line}\n" for line in [*first_lines, *lines])


def _text(cell: InstructionKey, has_pipes: bool) -> str:
    """A cell as it is written, with its pipe if there are several."""
    op, pipe, stage, microbatch = cell
    return f"{stage}REDUCE_GRAD" if op == SUM else f"{stage}{op}{microbatch}" + f"p{pipe}" * has_pipes


def _updates(line: Sequence[str]) -> Updates:
    """The updates that the first row states, or a flush if it states none."""
    match = UPDATES.fullmatch(",".join(line).strip(" ,"))
    return Updates(int(match[1]), None if match[2] is None else int(match[2])) if match else FLUSH


def _row(path: Path, number: int, line: Iterable[str], omissions: Counter[str]) -> Iterator[InstructionKey]:
    for column, text in enumerate(map(str.strip, line), 1):
        overlap = OVERLAP.fullmatch(text)
        for action in map(str.strip, overlap[1].split(";") if overlap else [text]):
            if match := COMPUTATION.fullmatch(action):
                stage, op, microbatch, pipe = match.groups(default="0")
                yield op, int(pipe), int(stage), int(microbatch)
            elif match := SUMMED.fullmatch(action):
                yield SUM, EVERY, int(match[1]), EVERY
            elif match := IMPLICIT.fullmatch(action):
                omissions[match[1]] += 1
            elif action:
                raise ScheduleError(f"{path}, row {number}, column {column}: cannot read {action!r:.40}; {NOTATION}")


def require_segment(
    name: str, rows: Sequence[Sequence[InstructionKey]], pipes: Sequence[Sequence[int]], updates: Updates
) -> None:
    """Refuse a table without a flush if its rows cannot be repeated.

    Args:
        name: the path of the table.
        pipes: the microbatches of each pipe.
    Raises:
        ScheduleError: it has several pipes or gradient sums, its microbatches are not whole updates numbered from 0, or
            a row has forwards that are not in the order of their microbatches.
    """
    if any(cell[0] == SUM for row in rows for cell in row):
        raise ScheduleError(f"{name} is asynchronous, and each update sums its gradients; leave REDUCE_GRAD out")
    if len(pipes) != 1:
        fact = f"{name} is asynchronous and has {len(pipes)} pipes"
        raise ScheduleError(f"{fact}; use one, or leave out its first row")
    number = len(pipes[0])
    if list(pipes[0]) != list(range(number)) or number % updates.every:
        numbers = f"microbatches: {number}, the last: {pipes[0][-1]}, an update's: {updates.every}"
        remedy = "number them from 0 without a gap, up to a multiple of that"
        raise ScheduleError(f"{name} is not of whole updates ({numbers}); {remedy}")
    for worker, row in enumerate(rows):
        forwards = [microbatch for op, _, _, microbatch in row if op == "F"]
        if forwards != sorted(forwards):
            fact = f"{name}: the forwards of worker {worker} are not in the order of their microbatches"
            raise ScheduleError(f"{fact}; without a flush they enter one after another")


async def run_segment(worker: Worker, row: Sequence[InstructionKey], microbatches: int) -> None:
    """Run a row, and repeat it while further microbatches enter.

    Args:
        microbatches: the number of microbatches in the row.
    """
    end = math.inf
    for start in count(0, microbatches):
        for op, pipe, stage, offset in row:
            microbatch = start + offset
            if op == "F" and microbatch < end and not await worker.wait(("F", pipe)):
                end = microbatch
            if microbatch < end:
                await worker.do(op, pipe, stage, microbatch)
        if end < math.inf:
            return
