"""The decisions before the first step, measured on the ranks that will run the job: the plan and the all-reduce.

A run that names no schedule gets Chimera at even depths, and the planner chooses depth, width and batches; with
`--plan auto` the planner chooses the schedule, too. Every choice trains on the same batch.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from apps.common.flags.run_flags import AUTO, AUTO_PLAN, start_of
from apps.gpt2.checks import MEASURED
from apps.gpt2.config import GPT2Flags
from apps.gpt2.job import GPT2Job
from apps.gpt2.planning.model_to_plan import GPT2ToPlan, planned_model_of
from apps.gpt2.planning.plan_file import arrangement, given_arrangement, is_open
from apps.gpt2.planning.team import names_layout, split_text
from apps.gpt2.planning.workload import WorkloadOptions, workload
from collectives.algorithms import parse_choice
from collectives.objects import broadcast_object
from pipelined.measurement.effort import BRIEF
from pipelined.measurement.timed.fastest_sums import fastest_sums
from pipelined.planner.candidates import Candidate
from pipelined.planner.decide import Decision, decide, decide_among_all
from pipelined.planner.worth_measuring import reason_not_to_measure
from pipelined.process.launch import Launch
from pipelined.programs.plan import Plan
from pipelined.schedules import require_known
from pipelined.state.checkpoints.checkpoint import open_checkpoint
from transports import Transport
from transports.shm.cores import own_cores


class DecidedPlan:
    """The stages of each rank, once the plan is decided."""

    def __init__(self, job: GPT2Job):
        self._plan = None if is_open(job.config) else job.plan

    def decide(self, plan: Plan) -> None:
        """Record the plan that was decided."""
        self._plan = plan

    def stages_of(self, rank: int) -> list[int]:
        """The stages of a rank; an empty list before the plan is decided."""
        return self._plan.stages_of(rank) if self._plan else []


async def decide_job(transport: Transport, job: GPT2Job, launch: Launch) -> GPT2Job:
    """Plan what the flags left open; all ranks call this together, and rank 0 decides.

    Returns: the job with its final plan.
    Raises:
        AgreedError: nothing fits the memory, or the planner cannot use the ranks.
    Cost: nothing where the arrangement was given; else some seconds where measuring pays, and none where it does not.
    """
    if not is_open(job.config):
        return job
    record = await broadcast_object(
        transport, "known", _decide_unmeasured(job, launch) if transport.rank == 0 else None
    )
    decision = (
        Decision.of(record, job.config.schedule) if record else await _decide_by_measuring(transport, job, launch)
    )
    plan = decision.candidate.plan
    is_auto = job.config.plan == AUTO_PLAN
    config = replace(job.config, **arrangement(plan, decision.candidate.recompute))
    return replace(
        job, config=config, plan=plan, reason=decision.reason, expected_s=decision.step_s if is_auto else None
    )


def recorded_candidate(config: Mapping[str, Any], schedule: str | None = None) -> Candidate | None:
    """The arrangement of a checkpoint's run; None where it names a file of code or has no possible sizes.

    Args:
        schedule: the one that the command line names, if any; this one may be a file of the user.
    """
    try:
        require_known(config["schedule"], schedule)
        return Candidate(Plan.of(config), config.get("recompute") is True)
    except (KeyError, TypeError, ValueError):
        return None


def _decide_unmeasured(job: GPT2Job, launch: Launch) -> dict[str, Any] | None:
    """The decision that needs no measurement: the plan of the resumed run, or the rule's; None where measuring pays.

    Raises:
        ScheduleError: the resumed run had a schedule from a file of the user, which the command line does not name.
    """
    path = start_of(job.config)
    saved_config = open_checkpoint(path).meta.config if path else {}
    schedule = job.config.schedule
    require_known(saved_config.get("schedule", job.plan.schedule), schedule)
    candidate = recorded_candidate(saved_config, schedule)
    sizes = job.plan.world_size, job.plan.batch
    if candidate and (candidate.plan.world_size, candidate.plan.batch) == sizes and _fits_flags(candidate, job.config):
        return Decision(candidate, f"as in {path}").to_dict()
    if job.config.plan == AUTO_PLAN:
        return None
    reason = reason_not_to_measure(
        _planned_model(job), launch, job.plan, cores=len(own_cores()), steps=job.config.steps, effort=BRIEF
    )
    return None if reason is None else Decision(Candidate(job.plan), f"{job.reason}; {reason}").to_dict()


def _fits_flags(candidate: Candidate, config: GPT2Flags) -> bool:
    """Whether an arrangement is one that the flags allow: each that is given binds the plan."""
    plan = candidate.plan
    if config.layout is not None and split_text(config.layout, plan.tensor) != split_text(plan.layout, plan.tensor):
        return False
    if plan.tensor == 1 and names_layout(config):
        return False
    plan_flags = {**plan.to_dict(), "tensor": plan.tensor, "recompute": candidate.recompute}
    flags = {name: value for name, value in given_arrangement(config).items() if name != "layout" and value != AUTO}
    return all(plan_flags[name] == value for name, value in flags.items())


async def _decide_by_measuring(transport: Transport, job: GPT2Job, launch: Launch) -> Decision:
    if job.config.plan == AUTO_PLAN:
        return await decide_among_all(transport, _planned_model(job), launch)
    return await decide(transport, _planned_model(job), launch, job.plan)


def _planned_model(job: GPT2Job) -> GPT2ToPlan:
    """What is planned; a run that names no schedule, and fixes T, keeps Chimera where the rule chose it."""
    config = job.config
    if config.plan != AUTO_PLAN and config.tensor != AUTO and job.plan.schedule == "chimera":
        config = replace(config, schedule="chimera")
    return replace(planned_model_of(config, job.plan.batch), model=job.model, sequence=job.sequence, runs=True)


async def decide_sums(transport: Transport, job: GPT2Job) -> GPT2Job:
    """Choose the all-reduce where the flags ask to measure; all ranks call this together, and rank 0 decides.

    The choice replaces `measured` in the configuration and so in every checkpoint; a resumed run takes it from there,
    as other sums round otherwise.

    Returns: the job with the all-reduce that it will use.
    Cost: nothing where an algorithm was given; else some sums of each bucket by every algorithm.
    """
    if job.config.all_reduce != MEASURED:
        return job
    algorithm = await broadcast_object(transport, "sums known", _saved_all_reduce(job) if transport.rank == 0 else None)
    reason = "as in the run that is resumed"
    if algorithm is None:
        sizes = workload(job.model, job.plan, job.sequence, WorkloadOptions(job.config.itemsize))
        algorithm = await fastest_sums(transport, job.plan, sizes.parameters)
        reason = "as measured"
    if transport.rank == 0:
        print(f"all-reduce: {algorithm} ({reason})", flush=True)
    return replace(job, config=replace(job.config, all_reduce=algorithm))


def _saved_all_reduce(job: GPT2Job) -> str | None:
    """The all-reduce of the run that is resumed, if that run had the same arrangement and chose an algorithm."""
    path = start_of(job.config)
    if path is None:
        return None
    config = open_checkpoint(path).meta.config
    choice = config.get("all_reduce")
    candidate = recorded_candidate(config, job.plan.schedule)
    if candidate is None or candidate.plan != job.plan or not isinstance(choice, str) or choice in ("auto", MEASURED):
        return None
    try:
        parse_choice(choice)
    except ValueError:  # written by a release with other algorithms
        return None
    return choice
