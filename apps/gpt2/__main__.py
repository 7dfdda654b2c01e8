"""Train a GPT-2: `mpirun -n 4 python -m apps.gpt2`.

Read the flags, detect the launcher, choose what was left open; then run one coroutine on each rank. Torch is imported
only after every check that does not need it.
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NoReturn

from apps.common.run.program import run_program
from apps.common.run.resume import agree_on_flags, parse_resumed
from apps.gpt2.config import COMMAND_NAME, GPT2Flags, parse
from apps.gpt2.job import GPT2Job, resolve
from apps.gpt2.planning.decide import DecidedPlan, decide_job, decide_sums
from apps.gpt2.planning.model_to_plan import GPT2ToPlan, planned_model_of
from apps.gpt2.planning.plan_file import is_open
from apps.gpt2.ravnest import job as ravnest
from apps.gpt2.ravnest.job import RavnestJob, resolve_ravnest
from apps.gpt2.swarm import job as swarm
from apps.gpt2.swarm.job import SwarmJob, resolve_swarm
from pipelined import __version__
from pipelined.actors.agree import agree
from pipelined.planner.predicted_moves import PredictedMoves, predicted_moves
from pipelined.process.exit import end_process, print_to_stderr
from pipelined.process.launch import Launch
from pipelined.process.run import StagesOf, run
from pipelined.process.stop_request import StopRequest
from pipelined.schedules import UnknownSchedule
from pipelined.simulation import Machine
from pipelined.state.checkpoints.claim import claimed
from transports import Transport


def main(arguments: list[str] | None = None) -> int:
    """Run the program; returns the exit code (0 done or saved, 1 failure, 2 usage, 130 interrupted)."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["generate"]:
        from apps.common.lm.generate import main as generate

        return generate("apps.gpt2", words[1:])
    return run_program(COMMAND_NAME, lambda: _parse(words), _run)


def _run(config: GPT2Flags, launch: Launch) -> int:
    if config.schedule in SYSTEMS:
        return SYSTEMS[config.schedule](config, launch)
    try:
        job = resolve(config, launch.world_size, local_size=launch.local_size)
    except UnknownSchedule:
        raise UnknownSchedule(config.schedule or "", SYSTEMS) from None
    if config.print_config or config.dry_run:
        return _show(job, launch)
    if not is_open(config):
        _announce(job, launch)
    decided_plan = DecidedPlan(job)
    program = partial(_run_rank, job=job, launch=launch, stop=StopRequest.of_rank(), decided_plan=decided_plan)
    return run(launch, job.plan.world_size, program, decided_plan.stages_of, COMMAND_NAME)


def _parse(arguments: list[str]) -> GPT2Flags:
    """Parse the command line; raises SystemExit after --version or --help."""
    if "--version" in arguments:
        print(f"pipelined {__version__}")
        raise SystemExit(0)
    return parse_resumed(arguments, parse)


def _run_swarm(config: GPT2Flags, launch: Launch) -> int:
    """Run a swarm's job: every rank is a peer."""
    job = resolve_swarm(config, launch.world_size)
    return _run_members(job, launch, lambda rank: [job.stage_of(rank)])


def _run_ravnest(config: GPT2Flags, launch: Launch) -> int:
    """Run a job of Ravnest's clusters: every rank is a node."""
    return _run_members(resolve_ravnest(config, launch.world_size), launch)


SYSTEMS = {swarm.SCHEDULE: _run_swarm, ravnest.SCHEDULE: _run_ravnest}
"""What runs the jobs in which the ranks form another system than a pipeline, by --schedule."""


def _run_members(job: SwarmJob | RavnestJob, launch: Launch, stages_of: StagesOf = lambda rank: []) -> int:
    """Run a job in which the ranks are members of a system, or show it."""
    if job.config.print_config or job.config.dry_run:
        if launch.rank == 0:
            print(job.json() if job.config.print_config else job.describe())
        return 0
    _announce(job, launch)
    member = partial(_run_member, job=job, launch=launch, stop=StopRequest.of_rank())
    return run(launch, job.ranks, member, stages_of, COMMAND_NAME)


def subject(flags: list[str], batch: int | None = None) -> GPT2ToPlan:
    """The model that `python -m pipelined plan` plans: this program with these flags.

    Args:
        batch: sequences a step, instead of `--batch`.
    """
    return planned_model_of(parse(flags), batch)


def _show(job: GPT2Job, launch: Launch) -> int:
    if is_open(job.config) and job.plan.world_size > 1:
        job = replace(job, reason=f"{job.reason}; a run measures first where that pays, and may choose otherwise")
    if job.config.dry_run and launch.rank == 0:
        from apps.gpt2.checks import check_job

        check_job(job)
    if launch.rank == 0:
        print(job.json() if job.config.print_config else f"{job.describe()}\n{job.table(_moves(job))}")
    return 0


def _moves(job: GPT2Job) -> Sequence[PredictedMoves]:
    """What the job's teams move."""
    model = replace(planned_model_of(job.config, job.plan.batch), model=job.model, sequence=job.sequence)
    return predicted_moves(model, job.plan, Machine())


def _announce(job: GPT2Job | SwarmJob | RavnestJob, launch: Launch) -> None:
    """Print the job and how it was started, on rank 0."""
    if launch.rank == 0:
        print(f"{job.describe()}\nlaunch: {launch.launcher}, transport {launch.url}", flush=True)


async def _run_rank(
    transport: Transport, job: GPT2Job, launch: Launch, stop: StopRequest, decided_plan: DecidedPlan
) -> int:
    """One rank of a job. Job and text are checked first, as that needs no torch."""
    stop.listen()
    from apps.gpt2.checks import check_job
    from apps.gpt2.text import prepare_text

    await agree(transport, "flags", agree_on_flags(transport, job.to_dict()))
    await agree(transport, "job", asyncio.to_thread(check_job, job) if transport.rank == 0 else asyncio.sleep(0))
    text = await prepare_text(transport, job)
    async with claimed(
        transport, job.config.checkpoint, lambda fact: print_to_stderr(f"warning: {fact}")
    ) as is_claimed:
        if is_open(job.config):
            job = await decide_job(transport, job, launch)
            decided_plan.decide(job.plan)
            _announce(job, replace(launch, rank=transport.rank))
        job = await decide_sums(transport, job)
        from apps.gpt2.train import train

        return await train(transport, job, launch, text, stop, claimed=is_claimed)


async def _run_member(transport: Transport, job: SwarmJob | RavnestJob, launch: Launch, stop: StopRequest) -> int:
    """One rank of a swarm or of Ravnest's clusters. Job and text are checked before torch is imported, as above."""
    stop.listen()
    from apps.common.lm.data.text import share_text

    await agree(transport, "job", asyncio.to_thread(job.check) if transport.rank == 0 else asyncio.sleep(0))
    text = await share_text(transport, job.read_text)
    if isinstance(job, SwarmJob):
        from apps.gpt2.swarm.run import train_swarm

        return await train_swarm(transport, job, launch, text, stop)
    from apps.gpt2.ravnest.run import train_ravnest

    return await train_ravnest(transport, job, launch, text, stop)


def console() -> NoReturn:
    """The command `pipelined-gpt2`: run the program and end the process with its exit code."""
    end_process(main())


if __name__ == "__main__":
    console()
