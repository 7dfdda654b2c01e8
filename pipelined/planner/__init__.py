"""The planner: it searches for the fastest arrangement of a job, by simulation with measured costs, and explains it.

Modules that need torch (`trial`, and the measurement) are imported only where they are used.
"""

from pipelined.planner.model_costs import StatedCosts, priced
from pipelined.planner.plan_file import PlanFile, read_plan, write_plan
from pipelined.planner.plan_search import SearchResult, search
from pipelined.planner.planner_model import PlannerModel
from pipelined.planner.request import SearchRequest, SimulatedCandidate

__all__ = [
    "PlanFile",
    "PlannerModel",
    "SearchRequest",
    "SearchResult",
    "SimulatedCandidate",
    "StatedCosts",
    "priced",
    "read_plan",
    "search",
    "write_plan",
]
