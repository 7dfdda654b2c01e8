"""What a search records of schedules is its own."""

import sys

import pytest

from pipelined.errors import UsageError
from pipelined.planner.plan_search import search
from pipelined.planner.recorded_programs import RecordedPrograms
from pipelined.programs.plan import Plan
from pipelined.schedules import gpipe, one_f_one_b, zb_h1
from tests.unit.pipelined.planner.test_plan_search import request
from tests.unit.pipelined.planner.toys import KEPT, Toy

MINE, HERE = f"{__name__}:mine", sys.modules[__name__]
mine = gpipe


def test_a_schedule_that_was_changed_under_its_name_is_searched_anew(monkeypatch):
    """As a class in a cell of a notebook that runs again; the search went on with the program of before."""
    toy = Toy(fixed={"schedule": MINE, "depth": 2, "microbatches": 8, "recompute": False})
    memory = search(request(toy, 2)).chosen.memory
    limit = memory - 1
    with pytest.raises(UsageError, match="no plan fits the memory"):
        search(request(toy, 2, limit=limit))
    monkeypatch.setattr(HERE, "mine", one_f_one_b)
    assert search(request(toy, 2, limit=limit)).chosen.memory == memory - 6 * 2 * KEPT


def test_backwards_split_where_the_schedule_of_this_search_splits_them(monkeypatch):
    plan, programs = Plan(MINE, 2, 1, 1, 4), RecordedPrograms()
    assert not programs.splits_backward(plan)
    monkeypatch.setattr(HERE, "mine", zb_h1)
    assert RecordedPrograms().splits_backward(plan) and not programs.splits_backward(plan)
    assert len(programs.in_time(plan).workers) == 2
