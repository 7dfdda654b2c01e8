"""A knob that a schedule of the user's own declares: seen wherever a setting of a schedule is seen."""

import json
import re

import pytest
import torch

import pipelined as pp
from apps.gpt2.config import parse
from apps.gpt2.job import resolve
from pipelined import schedules
from pipelined.__main__ import main
from pipelined.errors import UsageError
from pipelined.planner.candidates import candidates
from pipelined.planner.plan_file import PlanFile, read_plan, write_plan
from pipelined.programs.costs import Costs
from pipelined.programs.plan import Plan
from pipelined.schedules import AHEAD, CHUNKS, Knob, ScheduleError, Shape, knobs_of

TOY = """
from pipelined.schedules import Knob, ScheduleError
from pipelined.schedules.gpipe import stage_map as gpipe, schedule

GROUP = Knob("in_group", 1, "microbatches that enter together", least=1, tries=lambda depth, microbatches: (2,))
KNOBS = (GROUP,)

def stage_map(shape):
    if shape.microbatches % GROUP.of(shape):
        raise ScheduleError(f"not whole groups (in_group: {GROUP.of(shape)}); use `microbatches={GROUP.of(shape)}`")
    return gpipe(shape)
"""


@pytest.fixture
def toy(tmp_path):
    path = tmp_path / "toy.py"
    path.write_text(TOY)
    return str(path)


def test_it_is_a_flag_of_the_commands_that_name_its_schedule(toy, capsys):
    shape = ["--depth", "2", "--microbatches", "4"]
    assert main(["schedule", toy, *shape, "--in-group", "2"]) == 0
    assert main(["schedule", toy, *shape, "--in-group", "3"]) == 2
    assert "not whole groups (in_group: 3)" in capsys.readouterr().err
    assert main(["schedule", toy, *shape, "--in-group", "0"]) == 2
    assert "in_group must be at least 1 (it is 0)" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["simulate", toy, "--help"])
    assert "microbatches that enter together" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(SystemExit):
        main(["schedule", "gpipe", *shape, "--in-group", "2"])
    assert "unrecognized arguments: --in-group 2" in capsys.readouterr().err


def test_a_simulation_reports_its_value(toy, capsys):
    assert main(["simulate", toy, "--depth", "2", "--microbatches", "4", "--in-group", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["in_group"] == 2


def test_training_takes_it_from_its_flags_and_records_it(toy, capsys):
    config = parse(["--schedule", toy, "--in-group=2", "--depth", "2"])
    job = resolve(config, 2)
    assert job.plan.knobs == {"in_group": 2} == config.knobs
    assert job.to_dict()["in_group"] == 2 and job.to_dict()["chunks"] == 1
    with pytest.raises(SystemExit):
        parse(["--schedule", toy, "--help"])
    assert "--in-group" in capsys.readouterr().out
    with pytest.raises(UsageError):
        parse(["--in-group", "2"])


def test_the_planner_tries_its_values_and_names_them(toy):
    found = list(candidates(2, 4, 4, {"schedule": toy, "depth": 2}))
    assert {candidate.label for candidate in found} == {toy, f"{toy} 2 in_group"}
    assert {c.plan.knobs.get("in_group") for c in candidates(2, 12, 4, {"schedule": toy, "in_group": 3})} == {3}


def test_a_plan_file_keeps_it(toy, tmp_path):
    plan = Plan(toy, 2, 1, 1, 4, {"in_group": 2})
    write_plan(
        tmp_path / "plan.json",
        PlanFile(plan=plan, recompute=False, model={}, step_s=1.0, memory=(1.0, 1.0), why="so", found={}),
    )
    assert read_plan(tmp_path / "plan.json", toy).plan == plan
    assert plan != Plan(toy, 2, 1, 1, 4) == Plan(toy, 2, 1, 1, 4, {"in_group": 1})


def test_a_plan_written_before_a_schedule_had_it_has_the_default(toy):
    told = Plan(toy, 2, 1, 1, 4).to_dict()
    del told["in_group"]
    assert Plan.of(told) == Plan(toy, 2, 1, 1, 4)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ('(Knob("depth", 1, "of its own"),)', "declares .*'depth'.*which cannot be a knob"),
        ('("in_group",)', "declares 'in_group', which cannot be a knob"),
        (
            'Knob("group", 1, "of its own")',
            r"must be a tuple of knobs \(got: Knob .*'group'.*; write KNOBS = \(KNOB,\)",
        ),
        ("None", r"must be a tuple of knobs \(got: NoneType None\)"),
        ('(Knob("group", 1, "one"), Knob("group", 2, "other"))', "declares two knobs of the name group; give each"),
        ('(Knob(3, 1, "number"),)', r"the name of a knob must be a Python name \(got: int 3\); declare Knob\(NAME"),
        ('(Knob("a-b", 1, "dash"),)', r"must be a Python name \(got: str 'a-b'\)"),
        ('(Knob("group", None, "open"),)', r"default of the knob group must be an int or a str \(got: NoneType None\)"),
        ('(Knob("group", 1.5, "float"),)', r"must be an int or a str \(got: float 1.5\)"),
        ('(Knob("pipes", 3, "other"),)', "the knob pipes, which is one of this project's; import PIPES"),
    ],
)
def test_a_knob_that_cannot_be_one_is_refused(tmp_path, knobs, message):
    path = tmp_path / "wrong.py"
    path.write_text(f"from pipelined.schedules import Knob\nfrom pipelined.schedules.gpipe import *\nKNOBS = {knobs}\n")
    with pytest.raises(ScheduleError, match=message):
        knobs_of(str(path))


@pytest.mark.parametrize("key", Plan("gpipe", 2, 1, 1, 4, costs=Costs(2.0), tensor=2).to_dict())
def test_a_knob_with_the_name_of_a_plan_s_key_is_refused(tmp_path, key):
    """A knob named tensor replaced the number of ranks in plan files."""
    if key not in [knob.name for knob in knobs_of()]:
        path = tmp_path / "wrong.py"
        declared = f"KNOBS = (Knob({key!r}, 1, 'taken', tries=lambda depth, microbatches: ()),)\n"
        path.write_text(f"from pipelined.schedules import Knob\nfrom pipelined.schedules.gpipe import *\n{declared}")
        with pytest.raises(ScheduleError, match=rf"declares Knob\(name='{key}'.*, which cannot be a knob") as refused:
            knobs_of(str(path))
        assert "<function" not in str(refused.value)


@pytest.mark.parametrize("name", ["mailbox", "seed"])
def test_a_knob_with_the_name_of_a_flag_is_refused(tmp_path, name, capsys):
    path = tmp_path / "wrong.py"
    declared = f"KNOBS = (Knob({name!r}, 1, 'taken'),)\n"
    path.write_text(f"from pipelined.schedules import Knob\nfrom pipelined.schedules.gpipe import *\n{declared}")
    if name == "seed":
        with pytest.raises(UsageError, match="the knob seed of the schedule has the name of another flag"):
            parse(["--schedule", str(path)])
    else:
        assert main(["schedule", str(path), "--depth", "2", "--microbatches", "2"]) == 2
        assert "has the name of another flag" in capsys.readouterr().err


def test_the_knobs_of_the_project_are_keys_of_every_plan():
    sizes = {"schedule", "depth", "width", "microbatch", "microbatches"}
    assert (
        {*Plan("gpipe", 1, 1, 1, 1).to_dict()} - sizes
        == {knob.name for knob in knobs_of()}
        == {"ahead", "pipes", "chunks", "scale"}
    )


@pytest.mark.parametrize(("value", "message"), [(0, "at least 1"), ("2", "of type int"), (True, "of type int")])
def test_a_value_that_a_knob_cannot_have_is_refused(value, message):
    with pytest.raises(ScheduleError, match=message):
        CHUNKS.of(Shape(4, 4, {"chunks": value}))


def test_a_number_is_a_value_of_a_knob_of_texts():
    assert AHEAD.of(Shape(4, 4, {"ahead": 8})) == "8"
    assert Plan("async_1f1b", 2, 1, 1, 4, {"ahead": 8}) == Plan("async_1f1b", 2, 1, 1, 4, {"ahead": "8"})


def test_the_label_of_a_word_is_the_word():
    assert Knob("mode", "slow", "speed").label("fast") == "fast" and CHUNKS.label(4) == "4 chunks"


def test_one_that_a_schedule_of_the_user_does_not_declare_is_refused_everywhere(toy, tmp_path, capsys):
    """`--chunks 4` changed nothing, and was accepted."""
    message = re.escape(f"{toy} does not declare the knob chunks (chunks: 4, its knobs: in_group); leave `chunks=` out")
    path, plan = tmp_path / "plan.json", Plan(toy, 2, 1, 1, 4)
    planned = PlanFile(plan=plan, recompute=False, model={}, step_s=1.0, memory=(1.0, 1.0), why="", found={})
    write_plan(path, planned)
    path.write_text(path.read_text().replace('"chunks": 1', '"chunks": 4'))
    for refused in (
        lambda: Plan(toy, 2, 1, 1, 4, {"chunks": 4}),
        lambda: pp.prove(toy, depth=2, microbatches=4, chunks=4),
        lambda: parse(["--schedule", toy, "--chunks", "4"]),
        lambda: read_plan(path, toy),
        lambda: pp.train([torch.nn.ReLU], [], loss=None, optimizer=None, schedule=toy, chunks=4, steps=0),
    ):
        with pytest.raises(UsageError, match=message):
            refused()
    assert main(["schedule", toy, "--depth", "2", "--microbatches", "4", "--chunks", "4"]) == 2
    assert "(chunks: 4, its knobs: in_group); leave --chunks out" in capsys.readouterr().err


def test_a_schedule_without_any_says_so(tmp_path):
    (path := tmp_path / "plain.py").write_text("from pipelined.schedules.gpipe import schedule, stage_map\n")
    with pytest.raises(ScheduleError, match=r"the knob ahead \(ahead: 3, it has none\); .* or add AHEAD to its KNOBS"):
        Plan(str(path), 2, 1, 1, 2, {"ahead": "3"})


@pytest.mark.parametrize("name", [knob.name for knob in knobs_of()])
def test_every_knob_can_be_imported_as_the_remedies_say(name):
    assert getattr(schedules, name.upper()).name == name
