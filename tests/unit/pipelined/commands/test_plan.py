"""`python -m pipelined plan` with stated costs, and how it refuses what cannot be."""

import json
import re

import pytest

from pipelined.__main__ import main
from pipelined.planner import read_plan

STATED = ["plan", "--costs", "flops=1e10,overhead=1e-4", "--ranks", "4", "--global-batch", "16"]


def test_the_plan_is_reported_with_its_reason_and_written(tmp_path, capsys):
    assert main([*STATED, "--out", str(tmp_path / "plan.json")]) == 0
    out = capsys.readouterr().out
    rows = re.findall(r"^ *(\d+|dp) +\w+ .*?(\d+\.\d) +[\d,]+ ", out, re.MULTILINE)
    assert [label for label, _ in rows] == [*map(str, range(1, 11)), "dp"]
    steps = [float(step) for _, step in rows[:-1]]
    assert steps == sorted(steps) and steps[0] <= float(rows[-1][1])
    assert re.search(r"\d+ candidates: \d+ too big, \d+ simulated", out) and "chosen: " in out
    plan_file = read_plan(tmp_path / "plan.json")
    assert plan_file.plan.world_size == 4 and plan_file.plan.batch == 16


def test_json_is_the_plan_file_with_the_best(tmp_path, capsys):
    assert main([*STATED, "--json", "--out", str(tmp_path / "plan.json")]) == 0
    result, written = json.loads(capsys.readouterr().out), json.loads((tmp_path / "plan.json").read_text())
    assert {name: result[name] for name in written} == written
    assert len(result["best"]) == 10 and result["best"][0]["step_s"] == result["predicted"]["step_s"]
    assert result["data_parallel"]["width"] == 4
    assert all(sum(row["shares"].values()) == pytest.approx(1.0) for row in result["best"])


def test_flags_of_the_program_make_the_model_and_hold_what_they_say(capsys):
    program = ["--layers", "6", "--d-model", "64", "--depth", "4", "--schedule", "chimera", "--recompute"]
    assert main([*STATED, "--json", *program]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["model"]["layers"], result["model"]["d_model"]) == (6, 64)
    assert {(row["schedule"], row["depth"], row["recompute"]) for row in result["best"]} == {("chimera", 4, True)}


def test_the_table_names_recomputation_as_its_flag_does(capsys):
    assert main([*STATED, "--schedule", "chimera", "--depth", "4", "--recompute"]) == 0
    head, *rows = capsys.readouterr().out.split("\n\n")[1].splitlines()
    end = head.index(" recompute") + len(" recompute")
    assert {row[:end].split()[-1] for row in rows[:-1]} == {"yes"}


def test_a_schedule_without_a_flush_is_planned_only_where_it_is_requested(capsys):
    flags = [*STATED, "--schedule", "pipedream_2bw", "--depth", "4"]
    assert main([*flags, "--stale"]) == 0
    out = capsys.readouterr().out
    assert "pipedream_2bw, not exact" in out and "its gradients are those of older weights" in out
    with pytest.raises(SystemExit):
        main(flags)
    assert "or let `python -m pipelined plan --stale` look" in capsys.readouterr().err


def test_less_memory_makes_another_plan(capsys):
    chosen = []
    for limit in ("1G", "14M"):
        assert main([*STATED, "--json", "--memory-limit", limit]) == 0
        result = json.loads(capsys.readouterr().out)
        assert max(result["predicted"]["memory"]) <= {"1G": 2**30, "14M": 14 * 2**20}[limit]
        chosen.append(result["plan"]["depth"])
    assert chosen[0] == 1 < chosen[1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--costs", "overhead=1"], "--costs needs a speed"),
        (["--costs", "flops=-1"], "--costs: flops must be at least 0 (it is -1"),
        (["--costs", "flops=1e9,overhead=-1"], "overhead must be at least 0 (it is -1"),
        (["--costs", "speed=1"], "--costs knows no 'speed'"),
        (["--memory-limit", "much"], "--memory-limit much is no size"),
        (["--memory-limit", "0"], "memory_limit must be at least 1 (it is 0"),
        (["--memory-limit", "1M"], "no plan fits the memory"),
        (["--costs", "flops=1e9,coding=-1"], "coding must be at least 0 (it is -1"),
        (["--compress", "nonsense"], "--compress: unknown codec 'nonsense'"),
        (["--ranks", "0"], "ranks must be at least 1"),
        (["--ranks", "1000000000"], "ranks is 1000000000 and can be 65536 at most"),
        (["--tries", "-1"], "tries must be at least 0 (it is -1)"),
        (["--tries", "2"], "--tries 2 cannot run plans where --costs says what they cost; leave it out"),
        (["--global-batch", "7", "--width", "4"], "no schedule with a flush uses all ranks"),
        (["--schedule", "nonsense"], "unknown schedule"),
        (["--depth", "5"], "no schedule with a flush uses all ranks"),
        (["--links", "alpha=-1"], "--links alpha=-1 must be finite seconds from 0 up"),
        (["--program", "no.such.program"], "cannot be imported"),
        (["--program", "json"], "has no `subject`"),
        (["--preset", "huge"], "no preset is called"),
        (["--out", "/no/such/place.json"], "cannot write /no/such/place.json"),
    ],
)
def test_impossible_flags_are_refused_in_one_line(flags, message, capsys):
    with pytest.raises(SystemExit) as caught:
        main([*STATED, *flags])
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err.splitlines()[-1]


def test_an_unknown_flag_is_refused(capsys):
    with pytest.raises(SystemExit) as caught:
        main([*STATED, "--no-such-flag"])
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("word", "nearest"),
    [("--mem-limit", "; did you mean --memory-limit?"), ("--zzzzz", "; python -m apps.gpt2 --help")],
)
def test_a_misspelt_flag_is_refused_with_the_nearest_of_the_command_too(word, nearest, capsys):
    with pytest.raises(SystemExit) as caught:
        main([*STATED, word, "4"])
    err = capsys.readouterr().err
    assert caught.value.code == 2 and f"there is no flag {word}" in err and nearest in err
    assert ("did you mean" in err) == ("did you mean" in nearest)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--no-such-flag", "unrecognized arguments: --no-such-flag; see python -m pipelined schedule --help"),
        ("--jsno", "unrecognized arguments: --jsno; did you mean --json? see python -m pipelined schedule --help"),
    ],
)
def test_other_commands_still_refuse_flags_they_do_not_know(word, message, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["schedule", "gpipe", "--depth", "2", "--microbatches", "2", word])
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"python -m pipelined schedule: error: {message}\n"


def test_an_unknown_command_is_refused_with_the_nearest(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["docter"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith("; did you mean doctor? see python -m pipelined --help\n")
