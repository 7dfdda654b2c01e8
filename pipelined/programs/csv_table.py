"""A program written as a CSV table, in the notation that `schedules.own.table` reads."""

import csv
import io

from pipelined.programs.instructions import Instruction, Program
from pipelined.schedules import ScheduleError


def write_table(program: Program) -> str:
    """A program as a table. Reading the table returns the same program if every pipe has a microbatch.

    Raises:
        ScheduleError: microbatches are cut into parts, which a table cannot express.
    """
    if program.stage_map.parts != 1:
        fact = f"a table cannot say that microbatches are cut (parts: {program.stage_map.parts})"
        raise ScheduleError(f"{fact}; use `scale=direct` or forward-doubling")
    several, updates = program.stage_map.pipes > 1, program.stage_map.updates
    text = io.StringIO()
    if not updates.flushes:
        text.write(f"updates every {updates.every}{'' if updates.delay is None else f' delay {updates.delay}'}\n")
    for row in program.workers:
        csv.writer(text, lineterminator="\n").writerow(_cell(i, several) for i in row)
    return text.getvalue()


def _cell(instruction: Instruction, several: bool) -> str:
    """An instruction as a cell, with its pipe if there are several."""
    if not instruction.computes:
        return f"{instruction.stage}REDUCE_GRAD"
    return f"{instruction.stage}{instruction.op}{instruction.microbatch}" + f"p{instruction.pipe}" * several
