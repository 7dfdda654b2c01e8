"""The planner: measure a machine, fit what it costs, search all arrangements by simulation, and say why.

What needs torch (`measure`, `stages`) is imported where it is used; the rest does without.
"""

from pipelined.planner.costs import Stated, priced
from pipelined.planner.plan_file import PlanFile, read_plan, write_plan
from pipelined.planner.planned_model import PlannedModel
from pipelined.planner.search import Answer, Outcome, Question, search

__all__ = [
    "Answer",
    "Outcome",
    "PlanFile",
    "PlannedModel",
    "Question",
    "Stated",
    "priced",
    "read_plan",
    "search",
    "write_plan",
]
