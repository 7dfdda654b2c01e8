"""The fastest arrangement of a model: measure, search, try. Behind `pipelined.plan` and `python -m pipelined plan`."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from collectives.objects import broadcast_object
from pipelined.api.laboratory.names import require_mapping, require_names
from pipelined.api.laboratory.simulation import simulation_of
from pipelined.errors import UsageError, refuse_below, require_switch, require_whole
from pipelined.measurement.codec import CodecCosts, ratio_of
from pipelined.planner import ModelToPlan, PlanFile, SearchRequest, SearchResult, StatedCosts, search, write_plan
from pipelined.planner.decide import TRIES
from pipelined.planner.explain import as_json, as_text, plan_file_of
from pipelined.planner.limits import agreed_limit, agreed_sizes, share_of_memory
from pipelined.planner.measured import MeasuredSearch
from pipelined.process.launch import Launch
from pipelined.process.reporting.progress import Say, say_nothing
from pipelined.process.run import run_or_raise
from pipelined.programs.plan import Plan
from pipelined.schedules.parts.stage_map import MAX_COUNT, require_at_most
from pipelined.simulation import Machine
from pipelined.traces.drawing.picture import Picture
from pipelined.training.graph.compiled import require_alone, require_compiler
from transports import Transport

SPEED = ("flops", "overhead", "coding")
"""Floating-point operations a second, seconds an instruction, and seconds a byte of a message in the codec."""


@dataclass(frozen=True)
class PlanRequest:
    """The ranks and limits of a plan.

    Args:
        ranks: the ranks of the job.
        costs: costs of stages; None: they are measured.
        machine: nodes and cores, and links that are not measured.
        memory_limit: bytes that a rank may hold, infinite: any; None: its share of this machine's memory.
        without_flush: look at schedules without a flush, too, unless the optimizer updates masters.
        tries: plans to try with real steps; None: `TRIES` if that is possible.
    Raises:
        UsageError: a number is out of range.
    """

    ranks: int
    costs: StatedCosts | None
    machine: Machine
    memory_limit: float | None = None
    without_flush: bool = False
    tries: int | None = None

    def __post_init__(self) -> None:
        require_whole("ranks", self.ranks, 1)
        require_at_most(MAX_COUNT, "ranks", self.ranks)
        require_switch("stale", self.without_flush)  # which `plan` and the command call stale, after the gradients
        if self.tries is not None:
            require_whole("tries", self.tries, 0)
        if self.memory_limit is not None and self.memory_limit != math.inf:
            refuse_below(1, "memory_limit", self.memory_limit)

    def tries_on(self, launch: Launch) -> int:
        """The number of plans to try.

        Raises:
            UsageError: plans cannot be tried here, and `tries` asks for it.
        """
        started = launch.world_size or 1
        if self.costs is not None:
            hindrance = "`costs=` says what they cost"
        elif self.ranks != started:
            hindrance = f"other ranks are planned for than were started (planned: {self.ranks}, started: {started})"
        else:
            return TRIES if self.tries is None else self.tries
        if self.tries:
            raise UsageError(f"`tries={self.tries}` cannot run plans where {hindrance}; leave it out")
        return 0

    def limit_on(self, launch: Launch, gpus: Sequence[int] = ()) -> float:
        """Bytes a rank may hold.

        Args:
            gpus: bytes of each of this machine's GPUs.
        """
        if self.memory_limit is not None:
            return self.memory_limit
        here = self.machine.node or launch.count_ranks_here(self.ranks)
        return share_of_memory(min(here, self.ranks), gpus)


@dataclass(frozen=True, repr=False)
class Planned:
    """The fastest arrangement that was found. `print` shows the table of the best with the reason.

    Args:
        content: the chosen plan, as a plan file has it; equal on all ranks.
        answer: all that was found; None on the ranks that did not search.
    """

    content: PlanFile
    answer: SearchResult | None = None

    @property
    def plan(self) -> Plan:
        """The arrangement."""
        return self.content.plan

    @property
    def recompute(self) -> bool:
        """Whether each forward runs again before its backward."""
        return self.content.recompute

    @property
    def step_s(self) -> float:
        """Seconds of a step: measured where the plan was tried, else predicted."""
        return self.content.step_s

    @property
    def memory(self) -> tuple[float, ...]:
        """Predicted peak bytes of each rank."""
        return self.content.memory

    @property
    def why(self) -> str:
        """The reason, in one line."""
        return self.content.why

    def to_dict(self) -> dict[str, Any]:
        """As JSON; the same as `python -m pipelined plan --json` prints, and without the search the plan file."""
        return self.content.plain() if self.answer is None else as_json(self.answer, dict(self.content.found))

    def save(self, path: "str | os.PathLike[str]") -> None:
        """Write the plan file, for `--plan` of a program. Raises UsageError: it cannot be written."""
        write_plan(Path(path), self.content)

    def picture(self) -> Picture:
        """The simulated step of the chosen plan."""
        if self.answer is None:
            raise UsageError("this rank did not search for the plan, so it has no picture; draw it on rank 0")
        return simulation_of(self.answer.chosen.simulated).picture()

    def __repr__(self) -> str:
        if self.answer is None:
            return f"{self.plan}; {self.why}"
        return as_text(self.answer, dict(self.content.found))


def stated_costs(given: Mapping[str, float], operations: list[float], sequence: int, compress: str) -> StatedCosts:
    """Costs by the names of `SPEED`.

    Args:
        operations: floating-point operations of each layer's forward per token.
        sequence: tokens in a sequence.
        compress: the codec of messages.
    """
    require_mapping("costs", given, "{'flops': 1e10}")
    require_names("costs", given, SPEED, "1e10")
    for name, number in given.items():
        refuse_below(0, f"`costs=`: {name}", number)
    if not given.get("flops"):
        raise UsageError(f"`costs=` needs a speed (flops={given.get('flops', 0):g}); write it as flops=1e10")
    coding = CodecCosts(ratio_of(compress), per_byte=given.get("coding", 0.0))
    return StatedCosts(operations, sequence, given["flops"], given.get("overhead", 0.0), coding)


def find_plan(model: ModelToPlan, launch: Launch, request: PlanRequest, progress: Say, command: str) -> Planned:
    """The fastest plan; under a launcher all ranks call this together, and all get the same.

    Args:
        progress: called on rank 0 with a line as the work goes on.
        command: prefix of the message when a rank fails.
    Raises:
        UsageError: no plan fits, or none can be compiled. JobFailed: a rank failed; it has printed why.
    """
    compiles = model.fixed.get("compile", False)
    if compiles:
        numerics = model.numerics()
        require_alone(exact=numerics.exact_sums, attention=numerics.recompute_attention)
    tries = request.tries_on(launch)
    request = replace(request, without_flush=request.without_flush and not model.has_masters)
    if request.costs is not None:
        limits = request.limit_on(launch), request.without_flush
        result = search(SearchRequest(model, request.costs, request.machine, request.ranks, *limits), progress)
        return Planned(plan_file_of(result, request.costs.plain()), result)
    if compiles:
        require_compiler()
    return _Measuring(model, launch, request, tries, progress).run(command)


class _Measuring:
    """A measurement on all ranks, the search on rank 0, and the trials on all."""

    def __init__(self, model: ModelToPlan, launch: Launch, request: PlanRequest, tries: int, progress: Say):
        self._model = model
        self._launch = launch
        self._request = request
        self._tries = tries
        self._progress = progress

    def run(self, command: str) -> Planned:
        found = list[Planned]()

        async def rank(transport: Transport) -> None:
            found.append(await self._plan(transport))

        run_or_raise(self._launch, self._launch.world_size or 1, rank, command=command)
        return found[0]

    async def _plan(self, transport: Transport) -> Planned:
        from pipelined.measurement.measure import gpu_bytes
        from pipelined.planner.trial import try_best

        request, model = self._request, self._model
        limit = await agreed_limit(transport, request.limit_on(self._launch, gpu_bytes()))
        progress = self._progress if transport.rank == 0 else say_nothing
        measured = MeasuredSearch(
            model=model,
            launch=self._launch,
            sizes=await agreed_sizes(transport, model, request.ranks, limit, request.without_flush),
            machine=request.machine,
            ranks=request.ranks,
            memory_limit=limit,
            without_flush=request.without_flush,
            progress=progress,
        )
        result, costs = await measured.run(transport) or (None, {})
        if self._tries:
            result = await try_best(transport, model, self._launch, result, most=self._tries, progress=progress)
        content = None if result is None else plan_file_of(result, costs)
        plain = await broadcast_object(transport, "planned", content and content.plain())
        return Planned(content or PlanFile.of(plain, model.fixed.get("schedule")), result)
