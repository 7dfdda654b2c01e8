"""The arrangement that a call asks for; what it leaves open follows from ranks and batches, or from a plan."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipelined.api.data.feed import Feed, JobFeed, job_feed
from pipelined.api.planning.planned import Planned
from pipelined.errors import UsageError, got, require_switch, whole
from pipelined.process.launch import Launch
from pipelined.programs.plan import Plan, PlanError
from pipelined.schedules import (
    SCALE,
    KnobValue,
    Shape,
    SomeSchedule,
    default_depth,
    default_microbatches,
    even_chunks,
    find,
    name_of,
    require_knobs,
    workers_of,
)
from pipelined.training.exchange.parcels import Tree
from pipelined.training.job.numerics import REMEDIES, Numerics
from pipelined.training.models.batch import Batch

AUTO = "auto"
"""The schedule, or the ranks of a worker, of a call that trains by the fastest plan."""
KNOBS = "knobs"
"""The name of `**knobs` in the signatures; a call that passes `knobs=` is refused."""


@dataclass(frozen=True, kw_only=True)
class RequestedArrangement:
    """The arguments of a call that say how its job is arranged; None: open.

    Args:
        function: the function that is called; errors know its arguments.
    """

    schedule: SomeSchedule | None = None
    depth: int | None = None
    width: int | None = None
    microbatches: int | None = None
    recompute: bool | None = None
    knobs: Mapping[str, KnobValue] = field(default_factory=dict)
    tensor: int | str = 1
    layout: str | None = None
    function: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        sizes = ("depth", "width", "microbatches", *(() if self.tensor == AUTO else ("tensor",)))
        for name in sizes:
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, whole(name, value, 1))
        if self.recompute is not None:
            require_switch("recompute", self.recompute, REMEDIES["recompute"])
        if KNOBS in self.knobs:
            raise PlanError(
                f"{KNOBS}= is not an argument; give each setting of a schedule by its own name, such as pipes=4"
            )

    @property
    def is_planned(self) -> bool:
        """Whether a planner finds what is open."""
        return AUTO in (self.schedule, self.tensor)

    @property
    def team_size(self) -> int:
        """The ranks of a worker, one where they are open."""
        return 1 if self.tensor == AUTO else int(self.tensor)

    def _require_knobs(self, name: str | None) -> None:
        """Raises ScheduleError: this schedule has no such setting; it may be a misspelt argument of the function."""
        arguments = inspect.signature(self.function).parameters if self.function else {}
        require_knobs(name, self.knobs, [argument for argument in arguments if argument != KNOBS])

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments that are not open, by name; the schedule by its name.

        Raises:
            ScheduleError: an unknown schedule, or a setting that the schedule does not declare.
        """
        name = None if self.schedule in (None, AUTO) else name_of(self.schedule)
        self._require_knobs(name)
        sizes = {"depth": self.depth, "width": self.width, "microbatches": self.microbatches}
        team = {"tensor": None if self.tensor == 1 else self.tensor, "layout": self.layout}
        settings = {"schedule": name, **sizes, "recompute": self.recompute, **self.knobs, **team}
        return {name: value for name, value in settings.items() if value is not None}

    def fixed_settings(self, numerics: Numerics) -> dict[str, Any]:
        """What a planner must keep: the arguments, and what these numerics require: exact sums need scale=direct.

        Raises:
            PlanError: there is a layout for one rank.
        """
        if self.tensor == 1 and self.layout is not None:
            raise PlanError(f"one rank splits nothing (layout: {self.layout}, tensor: 1); give tensor=, too")
        exact = {SCALE.name: "direct"} if numerics.exact_sums else {}
        arguments = {name: value for name, value in self.arguments.items() if (name, value) != ("layout", AUTO)}
        return exact | arguments | ({"compile": True} if numerics.compile else {})

    def ranks(self, launch: Launch) -> int:
        """The ranks of the job: those that were started, or without a launcher those that it needs."""
        return launch.world_size or (self.depth or 1) * (self.width or 1) * self.team_size

    def plan(self, launch: Launch, feed: JobFeed) -> Plan:
        """The plan of a job: what is open follows from the ranks and from the first batch."""
        name = name_of("one_f_one_b" if self.schedule is None else self.schedule)
        knobs = self.knobs
        self._require_knobs(name)
        workers = self._workers(launch)
        depth = self.depth
        width = self.width
        if width is None:
            width = self._open_width(name, workers) if launch.world_size else 1
        group_workers = max(1, workers // width)
        if depth is None:
            depth, knobs = default_depth(name, group_workers, knobs)
        else:
            knobs = even_chunks(name, depth, group_workers, knobs)
        microbatches = self.microbatches or default_microbatches(name, depth)
        # refuse an impossible shape before the first batch is read
        find(name).stage_map(Shape(depth, microbatches, knobs))
        rows = feed.rows_each(microbatches * width)
        plan = Plan(name, depth, width, rows, microbatches, knobs=knobs, tensor=self.team_size)
        return feed.with_batch_size(plan)

    def _workers(self, launch: Launch) -> int:
        """The workers of all pipelines together. Raises PlanError: T does not divide the ranks."""
        ranks = self.ranks(launch)
        if ranks % self.team_size:
            fact = f"tensor does not divide the ranks (tensor: {self.team_size}, ranks: {ranks})"
            raise PlanError(f"{fact}; start a multiple of {self.team_size} ranks")
        return ranks // self.team_size

    def _open_width(self, name: str, workers: int) -> int:
        """The number of pipelines that a call leaves open: one, or with teams as many as there are workers for."""
        if self.team_size == 1:
            return 1
        depth, knobs = default_depth(name, 1, self.knobs) if self.depth is None else (self.depth, self.knobs)
        needed_workers = workers_of(name, depth, knobs)
        if needed_workers is None or (self.depth is None and needed_workers > 1):
            return 1
        return max(1, workers // needed_workers)

    def plan_of_example(self, launch: Launch, example: Tree | None) -> Plan:
        """As `plan`, by the inputs of one microbatch instead of a batch.

        Raises:
            UsageError: there are none, or a planner should find what is open.
        """
        if self.is_planned:
            fact = f'"{AUTO}" measures a whole batch, and a Trainer begins with none'
            raise UsageError(f"{fact}; give the result of pipelined.plan as plan=")
        if example is None:
            raise UsageError("the rows of a microbatch are not known; give example=, the inputs of one, or plan=")
        return self.plan(launch, job_feed(Feed(lambda *_: example, lambda *_: example)))

    def require_open(self, plan: Plan | Planned) -> Plan | Planned:
        """The plan; what `pipelined.plan` returns sets every argument, a `Plan` leaves `recompute` and `layout` open.

        Raises:
            UsageError: it is not a plan, or sets arguments that are given beside it; the message names them.
        """
        if not isinstance(plan, Plan | Planned):
            raise UsageError(f"plan= must be a pp.Plan or the result of pp.plan {got(plan)}")
        arguments = self.arguments if self.schedule != AUTO else {"schedule": AUTO, **self.arguments}
        is_open = () if isinstance(plan, Planned) else ("recompute", "layout")
        if repeats := [name for name in arguments if name not in is_open]:
            fact = f"plan= sets {repeats[0]} (given too: {', '.join(repeats)})"
            raise PlanError(f"{fact}; leave it out, or plan with it")
        return plan


def require_ranks(plan: Plan, launch: Launch) -> None:
    """Refuse a plan for another number of ranks than were started."""
    started_ranks, needed_ranks = launch.world_size, plan.world_size
    if started_ranks not in (None, needed_ranks):
        fact = f"the plan needs another number of ranks (started: {started_ranks}, needed: {needed_ranks})"
        pipeline_ranks = needed_ranks // plan.width
        remedy = "choose another depth or width"
        if started_ranks % pipeline_ranks == 0:
            remedy = f"give width={started_ranks // pipeline_ranks}"
        raise UsageError(f"{fact}; start {needed_ranks} ranks, or {remedy}")


def first_batch(feed: JobFeed) -> Batch:
    """A whole batch, to plan by; raises UsageError where no rank has one."""
    batch = feed.whole_batch(0)
    if batch is None:
        fact = f'schedule="{AUTO}" measures a whole batch, and a Feed has none'
        raise UsageError(f"{fact}; give batches, or name a schedule")
    return batch


def require_rows(plan: Plan, feed: JobFeed) -> None:
    """Refuse a plan for microbatches of other rows than the batches give."""
    rows = feed.rows_each(plan.total_microbatches)
    if rows != plan.rows:
        fact = f"the plan is for microbatches of other rows (rows planned: {plan.rows}, rows: {rows})"
        raise PlanError(f"{fact}; plan for these batches")
