"""The choice of what the flags left open: depth, width, schedule and the cut of a step's batch. No torch.

The reason of each choice is printed. A batch is kept the same at every world size where it can be, so that
runs on one process and on sixty-four give the same losses.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from apps.common.flags.run_flags import RunFlags, flag
from pipelined.errors import UsageError
from pipelined.programs.plan import Plan
from pipelined.schedules import CHUNKS, ScheduleError, Shape, StageMap, find, own_knobs, table_shape

CLIP = 1.0
"""Largest global gradient norm, by default, where the norm is known before the update."""
UNCLIPPED = "gradients are not clipped, as no stage knows the global norm when it is updated"


@dataclass(frozen=True, kw_only=True)
class RequestedShape:
    """What the flags request; None leaves it open.

    Args:
        world_size: workers that were started; None: as many as the plan needs.
        tensor: ranks of a worker; the messages count ranks.
        layers: the layers of the model, which its stages share out.
        besides: the layers among them that --layers does not set, in words; "": the program has no --layers.
        batch: sequences a step, B·N·W.
    """

    world_size: int | None
    layers: int
    batch: int
    batch_given: bool = False
    schedule: str | None = None
    depth: int | None = None
    width: int | None = None
    knobs: Mapping[str, int | str] = field(default_factory=dict)
    microbatch: int | None = None
    microbatches: int | None = None
    tensor: int = 1
    besides: str = ""

    def ranks(self, workers: int | None) -> int:
        """The ranks of as many workers."""
        return (workers or 0) * self.tensor


def choose_plan(
    config: RunFlags, world_size: int | None, *, tensor: int, layers: int, batch: int, besides: str = ""
) -> tuple[Plan, str]:
    """The plan of a run, and the reason in a line.

    Args:
        world_size: ranks that were started; None: as many as the plan needs.
        tensor: ranks of a worker.
        layers, besides: as in `RequestedShape`.
        batch: sequences a step where --batch is open.
    Raises:
        UsageError: as `choose`; T does not divide the ranks, or the schedule knows no norm to clip.
    """
    request = RequestedShape(
        world_size=_workers(tensor, world_size),
        layers=layers,
        batch=config.batch or batch,
        batch_given=config.batch is not None,
        schedule=config.schedule,
        depth=config.depth,
        width=config.width,
        knobs=config.knobs,
        microbatch=config.microbatch,
        microbatches=config.microbatches,
        tensor=tensor,
        besides=besides,
    )
    plan, reason = choose(_follow_table(request))
    if config.clip and not plan.flushes:
        fact = f"--clip {config.clip:g} does not go with {plan.schedule}: {UNCLIPPED}"
        raise UsageError(f"{fact}; leave --clip out, or use a schedule with a flush")
    return replace(plan, tensor=tensor), reason


def clip_of(config: RunFlags, plan: Plan) -> float:
    """Largest global gradient norm; 0 does not clip."""
    default = CLIP if plan.flushes else 0.0
    return default if config.clip is None else config.clip


def _workers(tensor: int, world_size: int | None) -> int | None:
    """Number of workers of `world_size` ranks; None if the ranks are open."""
    if world_size is None:
        return None
    if world_size % tensor:
        fact = f"--tensor does not divide the ranks (--tensor {tensor}, ranks: {world_size})"
        raise UsageError(f"{fact}; start a multiple of {tensor} ranks")
    return world_size // tensor


def _follow_table(request: RequestedShape) -> RequestedShape:
    """The shape of a schedule's table, where the schedule is one; other flags stay, and are checked with it."""
    table = table_shape(find(request.schedule)) if request.schedule else None
    if table is None:
        return request
    knobs = {CHUNKS.name: CHUNKS.of(table), **request.knobs}
    microbatches = request.microbatches or table.microbatches
    return replace(request, depth=request.depth or table.depth, microbatches=microbatches, knobs=knobs)


def choose(request: RequestedShape) -> tuple[Plan, str]:
    """Choose what was left open.

    Returns: the plan, and the reason in a line.
    Raises:
        UsageError: the requests contradict one another or the number of ranks.
    """
    depth, width, reason = _choose_depth_and_width(request)
    if depth > request.layers:
        note, advice = (f", counting {request.besides}", ", or raise --layers") if request.besides else ("", "")
        fact = f"more stages than layers (stages: {depth}, layers: {request.layers}{note})"
        raise UsageError(f"{fact}; lower --depth to {request.layers} or less{advice}")
    schedule = request.schedule or ("chimera" if depth % 2 == 0 else "one_f_one_b")
    microbatch, microbatches = _cut_batch(request, depth, width)
    plan = Plan(schedule, depth, width, microbatch, microbatches, knobs=request.knobs)
    if request.world_size is not None and plan.world_size != request.world_size:
        ranks, count = map(request.ranks, (request.world_size, plan.world_size))
        fact = f"the plan needs another number of ranks (ranks: {ranks}, workers a group: "
        raise UsageError(f"{fact}{plan.stage_map.workers}, groups: {width}); start {count} ranks or set --width")
    if request.batch_given and plan.batch != request.batch:
        raise _indivisible_batch(request, width)
    return plan, reason + _note_on_chunks(plan)


def _note_on_chunks(plan: Plan) -> str:
    """A note for a schedule that interleaves stages, where each worker has one."""
    if plan.depth == 1 or CHUNKS not in own_knobs(find(plan.schedule)) or CHUNKS.of(plan) > 1:
        return ""
    return "; without --chunks this is 1F1B, and --chunks 2 gives each rank two stages"


def _indivisible_batch(request: RequestedShape, width: int) -> UsageError:
    """The error of a batch that the width and the given cut do not make."""
    sizes = {"microbatch": request.microbatch, "microbatches": request.microbatches, "width": width}
    factors = {name: number for name, number in sizes.items() if number}
    unit = prod(factors.values())
    product = " x ".join(f"{name} {number}" for name, number in factors.items())
    fact = f"the batch does not divide (--batch {request.batch}, {product}{f' = {unit}' if len(factors) > 1 else ''})"
    advice = "give" if factors == sizes else "choose a multiple of"
    return UsageError(f"{fact}; {advice} {unit}, or leave --batch out")


def _choose_depth_and_width(request: RequestedShape) -> tuple[int, int, str]:
    """(depth, width, reason)."""
    ranks = request.world_size
    depth = request.depth
    width = request.width
    chunks = _stages_per_worker(request)
    if ranks is None:
        reason = "as many ranks as the plan needs, all in this process"
        return depth or _least_depth(request, chunks), width or 1, reason
    if depth is not None and width is not None:
        if depth * width // chunks != ranks:
            facts = f"ranks: {request.ranks(ranks)}, depth: {depth}, width: {width}{_team_note(request)}"
            count = request.ranks(depth * width // chunks)
            fact = f"ranks do not match depth times width ({facts})"
            raise UsageError(f"{fact}; start {count} ranks or leave --width out")
        return depth, width, "as given"
    if depth is not None or (width is None and request.tensor > 1):
        source = "the least depth of the schedule" if depth is None else "depth as given"
        depth = depth or _least_depth(request, chunks)
        groups = _divide_ranks(request, max(1, depth // chunks), "depth", depth)
        return depth, groups, f"{source}; the other ranks are further groups"
    if width is not None:
        depth = _divide_ranks(request, width, "width", width) * chunks
        return depth, width, "width as given; each group's ranks are its stages"
    return _choose_freely(ranks, chunks, request)


def _stages_per_worker(request: RequestedShape) -> int:
    """Stages of one pipe that a worker holds: those requested, else two where the schedule folds a pipe, else one."""
    chunks = CHUNKS.of(request)
    stage_map = _stage_map(request, 2) if chunks == 1 else None
    return 2 // stage_map.workers if stage_map else chunks


def _least_depth(request: RequestedShape, chunks: int) -> int:
    """The smallest depth of the schedule: that of one worker, else of two."""
    return chunks if request.schedule is None or _stage_map(request, chunks) else 2 * chunks


def _stage_map(request: RequestedShape, depth: int) -> StageMap | None:
    """The map of a pipeline so deep, if there is one."""
    shape = Shape(depth, request.microbatches or depth, request.knobs)
    try:
        return find(request.schedule).stage_map(shape) if request.schedule else None
    except ScheduleError:
        return None


def _divide_ranks(request: RequestedShape, divisor: int, name: str, value: int) -> int:
    if divisor < 1:
        raise UsageError(f"--{name} must be at least 1 (it is {value})")
    quotient, remainder = divmod(request.world_size or 0, divisor)
    if remainder:
        ranks, below, above = map(request.ranks, (request.world_size, quotient * divisor, (quotient + 1) * divisor))
        fact = f"the ranks are not a multiple of the {name} (ranks: {ranks}, {name}: {value}{_team_note(request)})"
        remedy = f"start {above if not below else f'{below} or {above}'} ranks, or change --{name}"
        if name == "depth" and _may_interleave(request) and not value % (request.world_size or 1):
            remedy = f"{remedy}, or give --chunks {value // (request.world_size or 1)}"
        raise UsageError(f"{fact}; {remedy}")
    return quotient


def _may_interleave(request: RequestedShape) -> bool:
    return request.schedule is not None and CHUNKS in own_knobs(find(request.schedule))


def _team_note(request: RequestedShape) -> str:
    return "" if request.tensor == 1 else f", tensor: {request.tensor}"


def _choose_freely(ranks: int, chunks: int, request: RequestedShape) -> tuple[int, int, str]:
    """Chimera near depth 4 where an even depth divides the ranks, else one pipeline, else data parallelism.

    A schedule that was asked for by another name gets as deep a pipeline as ranks and layers allow.
    """
    deepest = min(ranks, max(1, request.layers // chunks))
    divisors = [depth for depth in range(1, deepest + 1) if ranks % depth == 0]
    if request.schedule not in (None, "chimera"):
        workers = divisors[-1]
        stages = "one stage" if chunks == 1 else f"{chunks} stages"
        return workers * chunks, ranks // workers, f"as deep as ranks and layers allow, {stages} a rank"
    even = [depth for depth in divisors if depth % 2 == 0 and depth <= 8]
    if even:
        depth = min(even, key=lambda depth: (request.batch % (ranks // depth) != 0, abs(depth - 4), depth))
        return depth, ranks // depth, f"the even depth nearest 4 with a width that divides the batch of {request.batch}"
    if request.schedule == "chimera":
        raise UsageError(
            f"chimera needs an even depth (ranks: {ranks}, none divides it); start an even number of ranks"
        )
    depth = divisors[-1]
    if depth == 1:
        if ranks == 1:
            return 1, 1, "one rank holds the whole model"
        fact = f"{ranks} ranks do not fit {request.layers} layers as stages, so each holds the whole model"
        return 1, ranks, fact + (f" and the batch of {request.batch} is rounded" if request.batch % ranks else "")
    return depth, ranks // depth, f"no even depth divides {ranks} ranks: one stage a rank, 1F1B"


def _cut_batch(request: RequestedShape, depth: int, width: int) -> tuple[int, int]:
    """(microbatch, microbatches): the fewest microbatches that fill the pipeline, the batch kept where it divides."""
    for name in ("microbatch", "microbatches"):
        if getattr(request, name) is not None and getattr(request, name) < 1:
            raise UsageError(f"--{name} must be at least 1 (it is {getattr(request, name)})")
    share = max(1, request.batch // width)
    if request.microbatch and request.microbatches:
        return request.microbatch, request.microbatches
    if request.microbatch:
        return request.microbatch, max(1, share // request.microbatch)
    if request.microbatches:
        return max(1, share // request.microbatches), request.microbatches
    divisors = [n for n in range(1, share + 1) if share % n == 0]
    microbatches = next((n for n in divisors if n >= depth), divisors[-1])
    return share // microbatches, microbatches


def rows_of(batch: int, microbatches: int) -> int:
    """Rows of a microbatch. Raises UsageError: the microbatches do not divide the batch."""
    if batch % microbatches:
        fact = f"the microbatches do not divide the batch (batch: {batch}, microbatches: {microbatches})"
        raise UsageError(f"{fact}; take --microbatches that divides it")
    return batch // microbatches


def refuse_other_plan(file: Path, plan_flags: Mapping[str, Any], user_flags: Mapping[str, Any]) -> None:
    """Refuse flags that change what a plan's file says; they may repeat it.

    Args:
        file: the plan, or auto.
        plan_flags: the flags that the plan sets, by field.
        user_flags: the flags that the user gave.
    """
    for name, value in user_flags.items():
        if value != plan_flags[name]:
            fact = f"{flag(name)} {value} is not what {file} says ({plan_flags[name]})"
            raise UsageError(f"{fact}; leave the flag out, or plan again with it")
