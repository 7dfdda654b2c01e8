"""The plan of a whole job: W pipeline groups of one stage map each, and the ranks of each stage. No torch, no network.

A worker of a schedule is a team of T ranks, its members, which split every tensor of its stages among them; schedules
know workers only. Ranks are numbered group by group, worker by worker, member by member, so that a team and then
neighbouring stages of a pipeline are on the same node where possible. The gradient all-reduce of a stage spans the
groups, from member to member.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pipelined.errors import UsageError, whole
from pipelined.programs.costs import DEFAULT_COSTS, Costs
from pipelined.programs.staleness import steps_to_fill
from pipelined.schedules import SCALE, KnobValue, Shape, StageMap, checked_knobs, find, knobs_of, name_of, require_sizes


class PlanError(UsageError):
    """A job that cannot be laid out; the message ends in the remedy."""


SIZES = {"depth": "depth", "width": "width", "microbatch": "microbatch_size", "microbatches": "microbatches"}
"""The whole numbers of every plan: their names as flags and in files, and the fields."""


@dataclass(frozen=True)
class Plan:
    """One resolved arrangement of a job.

    Args:
        schedule: a name that `schedules.find` accepts; a class or function is kept by its name.
        depth: the stages of a pipeline, D.
        width: pipeline groups that run in parallel on their own microbatches, W.
        microbatch_size: sequences in a microbatch, B.
        microbatches: microbatches of a group per step, N.
        knobs: the schedule's further settings by name (see `schedules.parts.knobs`); those that are missing, or
            that have their default, are left out.
        costs: the costs that determine the idle gaps in which gradient sums start (see `programs.overlap`), and where a
            dynamic schedule runs weight halves. They change no result of training, so plans that differ in them alone
            are equal.
        tensor: the ranks of a worker, T.
        layout: how they split the model, as `--layout` of its program has it; "" for one rank, or where that is open.
    """

    schedule: str
    depth: int
    width: int
    microbatch_size: int
    microbatches: int
    knobs: Mapping[str, KnobValue] = field(default_factory=dict, hash=False)
    costs: Costs = field(default=DEFAULT_COSTS, compare=False)
    tensor: int = 1
    layout: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", name_of(self.schedule))
        if not isinstance(self.knobs, Mapping):
            raise PlanError(f"knobs is {self.knobs!r:.40}, without names; give values by name, as in {{'pipes': 4}}")
        object.__setattr__(self, "knobs", checked_knobs(self.schedule, self.knobs))
        for name, size in {**self.sizes, "tensor": self.tensor}.items():
            object.__setattr__(self, SIZES.get(name, name), whole(name, size, 1))
        require_sizes({"depth": self.depth, "width": self.width, "tensor": self.tensor})
        self.costs.require_stages(self.depth)
        if self.tensor == 1:
            object.__setattr__(self, "layout", "")
        if self.microbatch_size % (pieces := self.stage_map.pieces):
            fact = f"{SCALE.of(self)} cuts each microbatch in {pieces} (microbatch: {self.microbatch_size})"
            raise PlanError(f"{fact}; make it a multiple of {pieces}")
        update_size = self.stage_map.updates.every
        if self.total_microbatches // self.width % update_size:
            fact = f"{self.schedule} updates by {update_size} microbatches at a time (microbatches: "
            raise PlanError(f"{fact}{self.microbatches}); use a multiple of {update_size}")
        if self.tensor > 1 and not self.flushes:
            fact = f"only a schedule with a flush is split over ranks (tensor: {self.tensor}, schedule: "
            raise PlanError(f"{fact}{self.schedule}); use a schedule with a flush, or tensor 1")

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Plan":
        """A plan from the JSON of `to_dict`, read from a file or sent by a peer. A missing knob has its default.

        The schedule's code is run, so let `require_known` check its name first.

        Raises:
            KeyError, TypeError, ValueError: a field is missing, or of another type.
            PlanError, ScheduleError: the schedule refuses the plan, or a size is too large.
        """
        sizes = {name: document[name] for name in SIZES} | {"tensor": document.get("tensor", 1)}
        for name, value in sizes.items():
            if type(value) is not int:
                raise TypeError(f"{name} is {value!r} and should be of type int")
        knobs = {knob.name: document.get(knob.name, knob.default) for knob in knobs_of(document["schedule"])}
        require_sizes({name: size for name, size in {**sizes, **knobs}.items() if name != "microbatch"})
        costs = Costs.parse(document["costs"], sizes["depth"]) if "costs" in document else DEFAULT_COSTS
        layout = (document.get("layout") or "") if sizes["tensor"] > 1 else ""
        if type(layout) is not str:
            raise TypeError(f"layout is {layout!r} and should be of type str")
        fields = {SIZES.get(name, name): size for name, size in sizes.items()}
        return cls(document["schedule"], **fields, knobs=knobs, costs=costs, layout=layout)

    def to_dict(self) -> dict[str, Any]:
        """The plan as flat JSON: the schedule, the sizes, every knob with its value, and what else is not default."""
        knobs = {knob.name: knob.of(self) for knob in knobs_of(self.schedule)}
        costs = {} if self.costs == DEFAULT_COSTS else {"costs": self.costs.to_dict()}
        team = {} if self.tensor == 1 else {"tensor": self.tensor, "layout": self.layout}
        return {"schedule": self.schedule, **self.sizes, **knobs, **costs, **team}

    @property
    def sizes(self) -> dict[str, int]:
        """The whole numbers of every plan, by their names as flags and in files."""
        return {name: getattr(self, field) for name, field in SIZES.items()}

    @cached_property
    def stage_map(self) -> StageMap:
        """The stage map of one group."""
        return find(self.schedule).stage_map(self.shape)

    @property
    def shape(self) -> Shape:
        return Shape(self.depth, self.microbatches, self.knobs)

    @property
    def world_size(self) -> int:
        return self.width * self.stage_map.workers * self.tensor

    @property
    def rows(self) -> int:
        """Sequences in one microbatch of the schedule: B, or B/2 if backwards are halved."""
        return self.microbatch_size // self.stage_map.pieces

    @cached_property
    def total_microbatches(self) -> int:
        """The schedule's microbatches of one step over all groups: N·W, or twice that if backwards are halved."""
        return sum(map(len, self.stage_map.microbatches)) * self.width

    @property
    def microbatches_an_update(self) -> int:
        """The number of gradients, over all groups, in one update: all of a step, or fewer without a flush."""
        return self.stage_map.updates.every * self.width

    @property
    def updates_a_step(self) -> int:
        """Updates of each parameter in a step: 1, or without a flush the number that the schedule sets."""
        return self.total_microbatches // self.microbatches_an_update

    @property
    def flushes(self) -> bool:
        """Whether the pipe is drained at the end of every step; see `schedules.Updates`."""
        return self.stage_map.updates.flushes

    @property
    def proof_shape(self) -> Shape:
        """The shape that is checked before training: one step, or without a flush enough steps to fill the pipe."""
        return self.shape if self.flushes else replace(self.shape, steps=1 + steps_to_fill(self.shape))

    @property
    def batch(self) -> int:
        """Sequences of one step over all groups, B·N·W."""
        return self.rows * self.total_microbatches

    def segment(self, steps_done: int, steps: int, *periods: int) -> range:
        """The steps after those that are done, up to the next point where the job can be evaluated, saved or ended.

        With a flush this is one step: after it no microbatch is in flight. Without one the pipe is drained only after
        the steps that these numbers name, so a run that was interrupted at a drain resumes as if it had not been.

        Args:
            steps: the steps of the whole job.
            periods: the pipe is drained after each multiple of this many steps; 0: only at the end.
        """
        drains = [steps_done - steps_done % period + period for period in periods if period]
        return range(steps_done, steps_done + 1 if self.flushes else min([steps, *drains]))

    def rank(self, group: int, worker: int, member: int = 0) -> int:
        return (group * self.stage_map.workers + worker) * self.tensor + member

    def group_and_worker(self, rank: int) -> tuple[int, int]:
        """(group, worker) of a rank."""
        return divmod(rank // self.tensor, self.stage_map.workers)

    def member(self, rank: int) -> int:
        """The number of a rank in its team."""
        return rank % self.tensor

    def team(self, rank: int) -> tuple[int, ...]:
        """The ranks of a rank's worker, by member."""
        first_rank = rank - self.member(rank)
        return tuple(range(first_rank, first_rank + self.tensor))

    def stages_of(self, rank: int) -> list[int]:
        """The distinct stages that a rank holds, ascending."""
        return self.stage_map.stages_of(self.group_and_worker(rank)[1])

    def holder(self, group: int, pipe: int, stage: int, member: int = 0) -> int:
        """The rank that holds a member's piece of a stage of a pipe."""
        return self.rank(group, self.stage_map.placement[pipe, stage], member)

    def holders(self, *stages: int, member: int = 0) -> tuple[int, ...]:
        """The ranks that hold a replica of a member's piece of one of these stages, ascending.

        Their gradients are summed.
        """
        stage_map, team = self.stage_map, self.tensor
        workers = sorted(set().union(*map(stage_map.holders_of, stages)))
        return tuple((g * stage_map.workers + w) * team + member for g in range(self.width) for w in workers)

    def global_microbatch(self, group: int, microbatch: int) -> int:
        """The number of a group's microbatch among all microbatches of the step."""
        return group * (self.total_microbatches // self.width) + microbatch
