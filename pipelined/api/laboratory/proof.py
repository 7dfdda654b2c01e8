"""A schedule, proved and priced at given costs: `pipelined.prove`, which `python -m pipelined schedule` calls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from pipelined.api.laboratory.cost_names import require_mapping
from pipelined.errors import UsageError, refuse_below, whole
from pipelined.programs.costs import Costs, PerStage
from pipelined.programs.instructions import Program
from pipelined.programs.overlap import with_sums
from pipelined.programs.pricing.price import price
from pipelined.programs.pricing.steady import Steady, steady
from pipelined.programs.pricing.timeline import Timed, Timeline
from pipelined.programs.proof.check import check
from pipelined.programs.recording import record
from pipelined.programs.text_drawing import timeline_grid
from pipelined.schedules import KnobValue, Shape, SomeSchedule, checked_knobs, find, name_of, require_sizes, table_shape

if TYPE_CHECKING:
    from pipelined.traces.drawing.picture import Picture


@dataclass(frozen=True, repr=False)
class Proof:
    """A schedule that was proved, with its timeline. A notebook shows the picture; `print` shows the grid.

    Args:
        schedule: its name.
        shape: depth, microbatches, steps and knobs.
        program: the instructions of every worker.
        timeline: when each of them runs.
        steady: the steady state of a schedule without a flush; None: it has a flush.
    """

    schedule: str
    shape: Shape
    program: Program
    timeline: Timeline
    steady: Steady | None

    @property
    def makespan(self) -> float:
        """Seconds from the first start to the last end."""
        return self.timeline.makespan

    @property
    def bubble_ratio(self) -> float:
        """The idle share of all workers' time."""
        return self.timeline.bubble_ratio

    @property
    def peak_activations(self) -> list[float]:
        """The most microbatches alive at once on each worker; stage inputs, where it has several stages of a pipe."""
        return self.timeline.peak_activations

    @property
    def weight_copies(self) -> list[int]:
        """Copies of weights on each worker: for each of its stages the versions that it holds."""
        return self.timeline.weight_copies

    def to_dict(self) -> dict[str, Any]:
        """As JSON; the same as `python -m pipelined schedule --json` prints."""
        timeline = self.timeline
        without_flush = {}
        if self.steady is not None:
            without_flush = {
                "steps": self.shape.steps,
                "staleness": self.steady.staleness,
                "steady_step": self.steady.step,
            }
        return {
            "schedule": self.schedule,
            "depth": self.shape.depth,
            "microbatches": self.shape.microbatches,
            "workers": [[*map(_computation_to_dict, worker)] for worker in timeline.computations],
            "sums": [
                {"stage": gradient_sum.instruction.stage, "worker": worker, "start": gradient_sum.start}
                for worker, sums in enumerate(timeline.sums)
                for gradient_sum in sums
            ],
            "makespan": timeline.makespan,
            "bubble_ratio": timeline.bubble_ratio,
            "peak_activations": timeline.peak_activations,
            "weight_copies": timeline.weight_copies,
            **without_flush,
        }

    def text(self, columns: int | None = None) -> str:
        """The grid and its figures.

        Args:
            columns: fold the rows of the grid to this width, in characters; None: never.
        """
        timeline = self.timeline
        unit = "stages"
        without_flush = ""
        if self.steady is not None:
            unit = "versions"
            delays = " ".join(map(str, self.steady.staleness))
            without_flush = f"\nstaleness         {delays} (updates a stage)\nsteady step       {self.steady.step:g} s"
        peaks = " ".join(f"{peak:g}" for peak in timeline.peak_activations)
        return (
            f"{timeline_grid(timeline, columns)}\n\n"
            f"makespan          {timeline.makespan:g} s\n"
            f"bubble ratio      {timeline.bubble_ratio:.1%}\n"
            f"peak activations  {peaks} ({timeline.stage_map.unit_of_activations} a worker)\n"
            f"weight copies     {' '.join(map(str, timeline.weight_copies))} ({unit} a worker)"
            f"{without_flush}"
        )

    def picture(self) -> "Picture":
        """The timeline as a picture."""
        from pipelined.traces.drawing.picture import Picture
        from pipelined.traces.drawing.spans import spans_of

        size = f"D = {self.shape.depth}, N = {self.shape.microbatches}"
        title = f"{self.schedule}, {size}: makespan {self.makespan:g}, {self.bubble_ratio:.1%} idle"
        rows = [f"worker {worker}" for worker in range(self.timeline.stage_map.workers)]
        return Picture(spans_of(self.timeline), rows, title, "time")

    def __repr__(self) -> str:
        return self.text()

    def _repr_svg_(self) -> str | None:
        return self.picture()._repr_svg_()


def prove(
    schedule: SomeSchedule,
    *,
    depth: int | None = None,
    microbatches: int | None = None,
    steps: int = 1,
    costs: Mapping[str, PerStage] | None = None,
    mailbox: int | None = None,
    blocking_sums: bool = False,
    budget: float | None = None,
    **knobs: KnobValue,
) -> Proof:
    """Prove a schedule for a shape and price it; nothing is trained, and torch is not imported.

    It proves that every microbatch passes every stage, forward and backward, in order; that there is no deadlock; and
    that each gradient is complete before it is summed. `budget` adds the memory, `blocking_sums` the order of the sums.

    Args:
        schedule: a name, the path of a .py file or .csv table, or a class, function or module of your own.
        depth: the stages of a pipeline; a table knows its own.
        microbatches: microbatches a step; a table knows its own.
        steps: steps of a segment, where there is no flush between them.
        costs: seconds a stage: forward (1), backward (2), backward_input (default: half of the backward),
            backward_weight (default: the rest of it) and p2p (0); a list has one number for each stage.
        mailbox: prove it for sends that block while more than this number of messages are not requested.
        blocking_sums: prove it for gradient sums that block their worker.
        budget: prove that no worker has more microbatches alive; stage inputs, where it has several stages of a pipe.
        knobs: further settings that the schedule declares, such as `pipes=4`.
    Raises:
        UsageError: the schedule is not correct for this shape, or a setting is impossible.
    """
    steps = whole("steps", steps, 1)
    if mailbox is not None:
        mailbox = whole("mailbox", mailbox)
    if budget is not None:
        refuse_below(0, "budget", budget)
    name = name_of(schedule)
    plug_in = find(name)
    instruction_costs = costs_of(costs or {})
    shape = replace(shape_of(name, depth, microbatches, knobs), steps=steps)
    instruction_costs.require_stages(shape.depth)
    require_sizes({"depth": shape.depth, "microbatches in all steps": shape.microbatches * steps})
    program = record(plug_in, shape, instruction_costs)
    check(program, mailbox=mailbox, blocking_sums=blocking_sums, budget=budget)
    timeline = price(with_sums(program, costs=instruction_costs), instruction_costs)
    steady_state = None if timeline.stage_map.updates.flushes else steady(plug_in, shape, instruction_costs)
    return Proof(name, shape, program, timeline, steady_state)


def shape_of(name: str, depth: int | None, microbatches: int | None, knobs: Mapping[str, Any]) -> Shape:
    """The requested shape; a table gives its own depth and microbatches.

    Raises:
        UsageError: depth or microbatches are missing, or there is no such knob.
    """
    table = table_shape(find(name))
    checked = checked_knobs(name, knobs, ["depth", "microbatches"])
    depth = table.depth if table and depth is None else depth
    microbatches = table.microbatches if table and microbatches is None else microbatches
    sizes = {}
    for setting, value in (("depth", depth), ("microbatches", microbatches)):
        if value is None:
            raise UsageError(f"{setting} is missing ({name} does not fix it); give `{setting}=` with a number")
        sizes[setting] = whole(setting, value, 1)
    return Shape(**sizes, knobs=checked)


def costs_of(costs: Mapping[str, PerStage]) -> Costs:
    """The costs of instructions; what is not named keeps its default.

    Raises:
        UsageError: an unknown name, or work that takes no time. ScheduleError: a number that is not a duration.
    """
    names = {field.name.replace("_", "-"): field.name for field in fields(Costs)}
    by_field: dict[str, Any] = {}
    require_mapping("costs", costs)
    for name, seconds in costs.items():
        field = str(name).replace("_", "-")
        if field not in names:
            raise UsageError(f"unknown cost {name!r}; known: {', '.join(names)}, as in forward=1,backward=2")
        if field != "p2p" and 0 in as_list(seconds):
            raise UsageError(f"the cost {name} is 0; only p2p may be 0, give {name} more")
        is_for_all = field != "p2p" and len(as_list(seconds)) == 1
        by_field[names[field]] = as_list(seconds)[0] if is_for_all else seconds
    return Costs(**by_field)


def as_list(numbers: PerStage) -> Sequence[float]:
    """One number, or one for each stage, as a list."""
    return numbers if isinstance(numbers, Sequence) and not isinstance(numbers, str) else [numbers]


def _computation_to_dict(computation: Timed) -> dict[str, Any]:
    i = computation.instruction
    fields = {"op": i.op, "stage": i.stage, "microbatch": i.microbatch, "pipe": i.pipe}
    return {**fields, "start": computation.start, "end": computation.end}
