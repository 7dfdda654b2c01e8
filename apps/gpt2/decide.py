"""Before the first step: what was left open is planned on the ranks that will run it, or as the rule has it.

The rule: a run that names no schedule gets what the rule would give it, Chimera at even depths, and the planner chooses
its depth, width and batches; with `--plan auto` it chooses the schedule, too. All of them train on the same batch.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from os import sched_getaffinity
from typing import Any

from apps.gpt2.job import Job
from apps.gpt2.plan_file import AUTO, arrangement, is_open
from apps.gpt2.planned_model import Subject, subject_of
from apps.gpt2.resume import start_of
from pipelined.actors.agree import share
from pipelined.checkpoints import checkpoint
from pipelined.measurement.effort import BRIEF
from pipelined.planner.candidates import Candidate
from pipelined.planner.decide import Decision, decide, decide_among_all, why_not
from pipelined.planner.plan_file import require_possible
from pipelined.process.launch import Launch
from pipelined.programs.plan import Plan
from pipelined.schedules import require_known
from transports import Transport


class Seats:
    """Who holds which stages, as soon as that is known."""

    def __init__(self, job: Job):
        self._plan = None if is_open(job.config) else job.plan

    def take(self, plan: Plan) -> None:
        """Say what has been decided."""
        self._plan = plan

    def stages_of(self, rank: int) -> list[int]:
        """The stages of a rank; none before they are known."""
        return self._plan.stages_of(rank) if self._plan else []


async def decide_job(transport: Transport, job: Job, launch: Launch) -> Job:
    """The job as it will run; all ranks call this together, and rank 0 decides.

    Raises:
        AgreedError: nothing fits the memory, or the planner cannot use the ranks.
    Cost: nothing where the arrangement was given; else some seconds where measuring pays, and none where it does not.
    """
    if not is_open(job.config):
        return job
    known = await share(transport, "known", _unmeasured(job, launch) if transport.rank == 0 else None)
    decision = Decision.of(known) if known else await _measured(transport, job, launch)
    plan, asked = decision.candidate.plan, job.config.plan == AUTO
    config = replace(job.config, **arrangement(plan, decision.candidate.recompute))
    return replace(job, config=config, plan=plan, reason=decision.reason, expected_s=decision.step_s if asked else None)


def recorded(config: Mapping[str, Any], schedule: str | None = None) -> Candidate | None:
    """The arrangement that a checkpoint's run had; None where it names code to be run, no or impossible sizes.

    Args:
        schedule: the one that the command line names, if any; it may be the user's own.
    """
    told = {field.name: config.get(field.name) for field in fields(Plan)}
    if any(type(told[field.name]) is not field.type for field in fields(Plan)):
        return None
    try:
        require_possible(told)
        require_known(told["schedule"], schedule)
        plan = Plan(**told)
        return Candidate(plan, config.get("recompute") is True) if plan.layout else None
    except ValueError:
        return None


def _unmeasured(job: Job, launch: Launch) -> dict[str, Any] | None:
    """What is decided without measuring: as the run that is resumed had it, or by the rule where that must do.

    Raises:
        ScheduleError: the run that is resumed had a schedule of the user's own.
    """
    path = start_of(job.config)
    saved = checkpoint.open(path).meta.config if path else {}
    require_known(saved.get("schedule", job.plan.schedule))
    before = recorded(saved)
    if before and (before.plan.world_size, before.plan.batch) == (job.plan.world_size, job.plan.batch):
        return Decision(before, f"as in {path}").plain()
    if job.config.plan == AUTO:
        return None
    reason = why_not(_subject(job), launch, job.plan, len(sched_getaffinity(0)), job.config.steps, BRIEF)
    return reason and Decision(Candidate(job.plan), f"{job.reason}; {reason}").plain()


async def _measured(transport: Transport, job: Job, launch: Launch) -> Decision:
    if job.config.plan == AUTO:
        return await decide_among_all(transport, _subject(job), launch)
    return await decide(transport, _subject(job), launch, job.plan)


def _subject(job: Job) -> Subject:
    """What is planned; a run that names no schedule keeps the rule's, where that has a bidirectional one."""
    config = job.config
    if config.plan != AUTO and job.plan.schedule == "chimera":
        config = replace(config, schedule="chimera")
    return replace(subject_of(config, job.plan.batch), model=job.model, sequence=job.sequence)
