"""The fastest arrangement of a model: measure, search, try. Behind `pipelined.plan` and `python -m pipelined plan`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipelined.api.laboratory.cost_names import require_mapping, require_names
from pipelined.api.laboratory.simulation import simulation_of
from pipelined.errors import UsageError, refuse_below
from pipelined.measurement.timed.codec import CodecCosts, ratio_of
from pipelined.planner import PlanFile, PlannerModel, SearchRequest, SearchResult, StatedCosts, search, write_plan
from pipelined.planner.explain import as_text, plan_file_of, result_to_dict
from pipelined.planner.measured_search import find_measured
from pipelined.planner.request import PlanRequest
from pipelined.process.launch import Launch
from pipelined.process.reporting.progress import Say
from pipelined.process.run import run_or_raise
from pipelined.programs.plan import Plan
from pipelined.traces.drawing.picture import Picture
from pipelined.training.graph.compiled import require_alone, require_compiler
from transports import Transport

SPEED = ("flops", "overhead", "coding")
"""Floating-point operations a second, seconds an instruction, and seconds a byte of a message in the codec."""


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
        return self.content.to_dict() if self.answer is None else result_to_dict(self.answer, dict(self.content.found))

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


def find_plan(model: PlannerModel, launch: Launch, request: PlanRequest, progress: Say, command: str) -> Planned:
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
    started = launch.world_size or 1
    request.tries_on(started)  # refuse tries that cannot be made before ranks start
    request = replace(request, without_flush=request.without_flush and not model.has_masters)
    if request.costs is not None:
        stated = SearchRequest(
            model,
            request.costs,
            request.machine,
            request.ranks,
            memory_limit=request.limit_on(launch),
            without_flush=request.without_flush,
        )
        result = search(stated, progress)
        return Planned(plan_file_of(result, request.costs.to_dict()), result)
    if compiles:
        require_compiler()
    found = list[Planned]()

    async def rank(transport: Transport) -> None:
        found.append(Planned(*await find_measured(transport, model, launch, request, progress)))

    run_or_raise(launch, started, rank, command=command)
    return found[0]
