"""A program that trains a row of layers, from its command line to its exit code.

Read the flags, detect the launcher, choose what was left open; then run one coroutine on each rank. Torch is imported
only after every check that does not need it.
"""

import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from apps.common.flags.run_flags import parse_flags
from apps.common.rows.config import RowFlags, parse_planned
from apps.common.rows.job import RowJob, resolve
from apps.common.run.checks import check_run
from apps.common.run.program import run_program
from apps.common.run.resume import parse_resumed
from pipelined import __version__
from pipelined.process.launch import Launch
from pipelined.process.run import run
from pipelined.process.stop_request import StopRequest
from transports import Transport

if TYPE_CHECKING:
    from apps.common.rows.row_to_plan import RowToPlan


def main(program: str, default: RowFlags, arguments: list[str] | None = None) -> int:
    """Run a program; returns the exit code (0 done or saved, 1 failure, 2 usage, 130 interrupted).

    Args:
        program: its module, such as `apps.vgg`.
        default: its flags, where none is given.
        arguments: None: those of this process.
    """
    words = sys.argv[1:] if arguments is None else arguments
    name = f"python -m {program}"
    return run_program(name, lambda: _flags(words, default, name), partial(_run, program=name))


def subject(program: str, default: RowFlags, flags: list[str], batch: int | None = None) -> "RowToPlan":
    """The model that `python -m pipelined plan` plans: a program with some flags.

    Args:
        program: its module.
        default: its flags, where none is given.
        batch: rows a step, instead of `--batch`.
    """
    config = parse_planned(flags, default, f"python -m {program}")
    from apps.common.rows.row_to_plan import RowToPlan, row_to_plan

    return row_to_plan(RowToPlan, config, batch)


def _flags(arguments: list[str], default: RowFlags, program: str) -> RowFlags:
    """Parse the command line; raises SystemExit after --version or --help."""
    if "--version" in arguments:
        print(f"pipelined {__version__}")
        raise SystemExit(0)

    def parse(words: list[str], over: RowFlags | None) -> RowFlags:
        return parse_flags(words, over or default, program)

    return parse_resumed(arguments, parse)


def _show(job: RowJob, launch: Launch) -> int:
    if job.config.is_open and (ranks := launch.world_size or 1) > 1:
        job = replace(job, reason=f"open: a run measures first, and chooses a plan of {ranks} ranks")
    if launch.rank == 0:
        print(job.json() if job.config.print_config else f"{job.describe()}\n{_table(job)}")
    return 0


def _table(job: RowJob) -> str:
    from apps.common.rows.rank import describe_split, user_model
    from apps.common.rows.row_to_plan import RowToPlan, row_to_plan
    from apps.common.run.plan_table import plan_table
    from pipelined.api.planning.team_sizes import TeamSizes
    from pipelined.programs.partition import partition
    from pipelined.training.models.split.split_row import SplitRow

    model = user_model(job)
    plan = job.plan
    recompute = job.config.recompute
    planner_model = row_to_plan(RowToPlan, job.config, plan.batch)
    cut = partition(planner_model.layer_costs, plan.depth)
    if not isinstance(model, SplitRow):
        return plan_table(plan, cut, planner_model.workload(plan), recompute)
    team = TeamSizes(model, planner_model)
    return f"{describe_split(model)}\n{plan_table(plan, cut, team.workload(plan), recompute, team.moves(plan))}"


def _run(config: RowFlags, launch: Launch, program: str) -> int:
    job = resolve(config, launch.world_size)
    if config.print_config:
        return _show(job, launch)
    check_run(job.config, job.plan)
    if config.dry_run:
        return _show(job, launch)
    job.task.check()
    from apps.common.rows.rank import describe_split, train, user_model
    from apps.common.rows.row_to_plan import plan_now

    if config.is_open:
        job = resolve(job.config, launch.world_size, plan_now(job.config, job.plan.batch, launch, program))
    model = user_model(job)
    stop = StopRequest.of_rank()
    if launch.rank == 0:
        split = describe_split(model)
        lines = [job.describe(), *([split] if split else []), f"launch: {launch.launcher}, transport {launch.url}"]
        print("\n".join(lines), flush=True)

    async def rank(transport: Transport) -> int:
        stop.listen()
        return await train(transport, job, launch, stop, model)

    return run(launch, job.plan.world_size, rank, job.plan.stages_of, program)
