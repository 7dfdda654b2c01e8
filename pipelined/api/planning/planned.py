"""The result of the planner: the fastest arrangement that was found, with its reason, its plan file and its picture."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelined.api.laboratory.simulation import simulation_of
from pipelined.errors import UsageError
from pipelined.planner import PlanFile, SearchResult, write_plan
from pipelined.planner.explain import as_text, result_to_dict
from pipelined.programs.plan import Plan
from pipelined.traces.drawing.picture import Picture


@dataclass(frozen=True, repr=False)
class Planned:
    """The fastest arrangement that was found. `print` shows the table of the best with the reason.

    Args:
        plan_file: the chosen plan, as a plan file has it; equal on all ranks.
        search_result: all that was found; None on the ranks that did not search.
    """

    plan_file: PlanFile
    search_result: SearchResult | None = None

    @property
    def plan(self) -> Plan:
        """The arrangement."""
        return self.plan_file.plan

    @property
    def recompute(self) -> bool:
        """Whether each forward runs again before its backward."""
        return self.plan_file.recompute

    @property
    def step_s(self) -> float:
        """Seconds of a step: measured where the plan was tried, else predicted."""
        return self.plan_file.step_s

    @property
    def memory(self) -> tuple[float, ...]:
        """Predicted peak bytes of each rank."""
        return self.plan_file.memory

    @property
    def why(self) -> str:
        """The reason, in one line."""
        return self.plan_file.why

    def to_dict(self) -> dict[str, Any]:
        """As JSON; the same as `python -m pipelined plan --json` prints, and without the search the plan file."""
        if self.search_result is None:
            return self.plan_file.to_dict()
        return result_to_dict(self.search_result, dict(self.plan_file.found))

    def save(self, path: "str | os.PathLike[str]") -> None:
        """Write the plan file, for `--plan` of a program. Raises UsageError: it cannot be written."""
        write_plan(Path(path), self.plan_file)

    def picture(self) -> Picture:
        """The simulated step of the chosen plan."""
        if self.search_result is None:
            raise UsageError("this rank did not search for the plan, so it has no picture; draw it on rank 0")
        return simulation_of(self.search_result.chosen.simulated).picture()

    def __repr__(self) -> str:
        if self.search_result is None:
            return f"{self.plan}; {self.why}"
        return as_text(self.search_result, dict(self.plan_file.found))


def as_plan(plan: Plan | Planned) -> Plan:
    """The arrangement, of which a call takes either form."""
    return plan.plan if isinstance(plan, Planned) else plan
