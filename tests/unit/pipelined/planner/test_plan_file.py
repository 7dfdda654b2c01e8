"""A plan written and read, and what is no plan."""

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelined.errors import UsageError
from pipelined.planner import PlanFile, read_plan, write_plan
from pipelined.planner.predicted_moves import PredictedMoves
from pipelined.programs.plan import Plan
from tests.launching import ROOT

PLANNED = PlanFile(
    plan=Plan("chimera", 4, 2, 8, 4, {"scale": "backward-halving"}),
    recompute=True,
    model={"model": "toy", "seq": 8},
    step_s=0.5,
    memory=(1.0, 2.0),
    why="so",
    found={},
)
HUGE_MOVE = {"stage": 0, "phase": "forward", "bytes": 1, "seconds": 10**400}


@pytest.fixture
def path(tmp_path):
    write_plan(tmp_path / "plan.json", PLANNED)
    return tmp_path / "plan.json"


def changed(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return path


def test_what_was_written_is_read(path):
    assert read_plan(path) == PLANNED
    assert [entry.name for entry in path.parent.iterdir()] == ["plan.json"]


def test_moves_of_teams_are_written_and_read(path):
    content = replace(PLANNED, moves=(PredictedMoves(0, "forward", 64, 1e-3), PredictedMoves(1, "update", 0, 0.0)))
    write_plan(path, content)
    assert read_plan(path) == content


def test_a_plan_of_version_1_is_read(path):
    assert read_plan(changed(path, version=1)) == PLANNED


def test_teams_and_their_layout_are_written_and_read(path):
    plan = Plan("one_f_one_b", 2, 1, 8, 4, tensor=2, layout="c_attn=1.2.1,attn.c_proj=1.1.2")
    write_plan(path, replace(PLANNED, plan=plan))
    read = read_plan(path).plan
    assert (read, read.tensor, read.layout) == (plan, 2, plan.layout)
    assert json.loads(path.read_text())["ranks"] == 4
    changed(path, plan={**plan.to_dict(), "layout": 3})
    with pytest.raises(UsageError, match="layout is 3 and should be of type str"):
        read_plan(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no plan (not JSON"),
        ("[" * 100_000, "is no plan (not JSON"),
        ("\x00\xff", "is no plan (not JSON"),
        ("[]", "is no plan (JSON without format"),
        ('{"loss": 1}', "is no plan (JSON without format"),
    ],
)
def test_a_foreign_file_is_refused(tmp_path, text, message):
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UsageError) as caught:
        read_plan(path)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 3}, "of another version (its: 3, known: 1 and 2)"),
        ({"plan": {}}, "is a damaged plan (KeyError: 'schedule')"),
        ({"plan": 3}, "is a damaged plan"),
        ({"recompute": 1}, "recompute is 1 and should be of type bool"),
        ({"predicted": {"step_s": -1.0, "memory": []}}, "step_s is -1.0 and should be seconds"),
        ({"predicted": {"step_s": 10**400, "memory": [1.0]}}, "is a damaged plan (OverflowError: "),
        ({"predicted": {"step_s": 1.0, "memory": ["much"]}}, "is a damaged plan"),
        ({"predicted": {"step_s": 1.0, "memory": []}}, "memory is [] and should be bytes of each rank"),
        ({"predicted": {"step_s": 1.0, "memory": ["nan", True]}}, "memory is ['nan', True] and should be bytes"),
        ({"predicted": {"step_s": 1.0, "memory": [float("nan")]}}, "memory is [nan] and should be bytes"),
        ({"predicted": {"step_s": 1.0, "memory": [10**400]}}, "is a damaged plan (OverflowError: "),
        ({"predicted": {"step_s": 1.0, "memory": [1.0], "moves": [HUGE_MOVE]}}, "is a damaged plan (OverflowError: "),
        ({"ranks": 99}, "ranks is 99 and should be 8, as the plan has"),
        ({"ranks": "8"}, "ranks is '8' and should be of type int"),
        ({"predicted": {"step_s": 1.0, "memory": [1.0], "moves": [{}]}}, "is a damaged plan (KeyError: 'stage')"),
    ],
)
def test_a_damaged_plan_is_refused(path, changes, message):
    with pytest.raises(UsageError) as caught:
        read_plan(changed(path, **changes))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"schedule": "nonsense"}, "the schedule 'nonsense' is not one of this project's"),
        ({"depth": 3}, "chimera needs an even depth"),
        ({"microbatch": 0}, "microbatch must be at least 1"),
        ({"depth": 10**12}, "depth is 1000000000000 and can be 65536 at most"),
        (
            {"depth": 65536, "microbatches": 65536},
            r"depth times microbatches is 4294967296 \(65536 x 65536\) and can be 1048576 at most; use fewer stages",
        ),
        ({"depth": 65536, "width": 17}, "depth times width is 1114112"),
        ({"depth": 65536, "pipes": 65536}, "depth times pipes is 4294967296"),
        ({"depth": 4.0}, "depth is 4.0 and should be of type int"),
        ({"pipes": "4"}, "pipes is '4'; give a value of type int"),
    ],
)
def test_a_plan_that_cannot_be_laid_out_is_refused(path, setting, message):
    plan = {**json.loads(path.read_text())["plan"], **setting}
    with pytest.raises(UsageError, match=message):
        read_plan(changed(path, plan=plan))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_plan_that_is_cut_short_is_refused(path, data):
    write_plan(path, PLANNED)
    text = path.read_text()
    path.write_text(text[: data.draw(st.integers(0, len(text) - 3))])
    with pytest.raises(UsageError):
        read_plan(path)


def test_a_file_that_cannot_be_read_or_written_is_named(tmp_path):
    with pytest.raises(UsageError, match="cannot read the plan"):
        read_plan(tmp_path / "none.json")
    with pytest.raises(UsageError, match="cannot write"):
        write_plan(tmp_path / "none" / "plan.json", PLANNED)


def test_of_lists_the_first_difference_is_named(path):
    """A model of a hundred layers filled two screens."""
    content = replace(read_plan(path), model={"layers": ["a", "b", "c"]})
    for layers, message in ((["a", "x", "y"], r"layers, number 1: b, here: x\)"), (["a"], r"layers: 3, here: 1\)")):
        with pytest.raises(UsageError, match=message):
            content.require(path, {"layers": layers}, 8)


@pytest.mark.parametrize(
    ("model", "ranks", "message"),
    [
        ({"model": "toy", "seq": 9}, 8, r"another model \(seq: 8, here: 9\)"),
        ({"model": "toy"}, 8, r"another model \(seq: 8, here: None\)"),
        ({"model": "toy", "seq": 8}, 4, r"another number of ranks \(planned: 8, ranks: 4\); start 8"),
    ],
)
def test_another_model_or_number_of_ranks_is_refused(path, model, ranks, message):
    with pytest.raises(UsageError, match=message):
        read_plan(path).require(path, model, ranks)


def test_without_a_launcher_a_plan_says_how_many_ranks_there_are(path):
    read_plan(path).require(path, {"model": "toy", "seq": 8}, None)


def test_a_plan_s_word_is_not_enough_to_run_a_schedule_s_code(path, tmp_path):
    """Reading a plan executed any file that it named, and imported any module."""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    for schedule in (str(tmp_path / "evil.py"), "antigravity", "table.csv"):
        changed(path, plan={**PLANNED.to_dict()["plan"], "schedule": schedule})
        with pytest.raises(UsageError, match="not one of this project's"):
            read_plan(path)
    assert not (tmp_path / "ran").exists()


def test_a_plan_of_a_schedule_of_one_s_own_is_read_where_the_command_line_names_it_too(path):
    schedule = str(ROOT / "docs" / "examples" / "pairs.py")
    settings = {"schedule": schedule, "depth": 2, "pipes": 0, "scale": "direct"}
    changed(path, plan={**PLANNED.to_dict()["plan"], **settings}, ranks=4)
    assert read_plan(path, schedule).plan.schedule == schedule
