"""`python -m pipelined trace`: which step it draws, what beside it, and what it says to a file that is no trace."""

import gzip
import json
from pathlib import Path

import pytest

from pipelined.__main__ import main
from pipelined.traces.file import write
from pipelined.traces.tracer import Tracer

STEPS = (3, 4, 5)


@pytest.fixture
def trace(tmp_path):
    """Two ranks, three steps of 10 ms each, with everything a rank can do."""
    tracers = [Tracer(float) for _ in range(2)]
    for step in STEPS:
        begin = 7.0 + 0.010 * step
        for rank, tracer in enumerate(tracers):
            key = (step, rank, 0, 0)
            tracer.record("receive", "activation", begin, begin + 0.001, key)
            tracer.record("forward", "forward", begin + 0.001 + 0.001 * rank, begin + 0.002 + 0.001 * rank, key)
            tracer.record("backward", "backward", begin + 0.004, begin + 0.006, key)
            tracer.record("all_reduce", "stage", begin + 0.006, begin + 0.007, (step, rank, -1, -1))
            tracer.record("step", "step", begin + 0.008, begin + 0.009, (step, -1, -1, -1))
    path = tmp_path / "trace.json.gz"
    write(path, [tracer.events() for tracer in tracers])
    return path


def test_it_draws_the_middle_step_and_says_where_its_time_went(capsys, tmp_path, trace):
    assert main(["trace", str(trace), "--png", str(tmp_path / "p.png")]) == 0
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out == "step 4 on 2 ranks: 8.0 ms, 38% of it in forward and backward\n"


@pytest.mark.parametrize("step", STEPS)
def test_a_step_can_be_chosen(capsys, tmp_path, trace, step):
    assert main(["trace", str(trace), "--svg", str(tmp_path / "p.svg"), "--step", str(step)]) == 0
    assert capsys.readouterr().out.startswith(f"step {step} on 2 ranks")
    assert f"step {step}" in (tmp_path / "p.svg").read_text()


@pytest.fixture
def expected(tmp_path):
    """What was expected of the step: one worker, in units of which a forward takes one and a backward two."""

    def written(*rows, unit=1.0):
        tracers = [Tracer(float) for _ in rows]
        for rank, (tracer, (forward, backward)) in enumerate(zip(tracers, rows, strict=True)):
            tracer.record("forward", "forward", forward * unit, (forward + 1) * unit, (0, rank, 0, 0))
            tracer.record("backward", "backward", backward * unit, (backward + 2) * unit, (0, rank, 0, 0))
        path = tmp_path / "expected.json"
        write(path, [tracer.events() for tracer in tracers])
        return str(path)

    return written


def test_a_step_is_laid_beside_what_was_expected_with_the_largest_differences(capsys, tmp_path, trace, expected):
    against = ["--against", expected((0, 2), (1, 2.5), unit=0.001), "--png", str(tmp_path / "p.png")]
    assert main(["trace", str(trace), *against]) == 0
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "measured, step 4 on 2 ranks: 8.0 ms, 38% of it in forward and backward",
        "expected, expected.json: 4.5 ms, 67% of it in forward and backward",
        "the last backward ended at 5.0 ms, expected 4.5 ms (1.111x)",
    ]
    assert lines[4:8] == [
        "mean, ms            measured  expected",
        "  backward             2.000     2.000",
        "  forward              1.000     1.000",
        "  wait before          1.000     0.625",
    ]
    assert lines[9:12] == [
        "largest differences",
        "  rank 0    waited 1 ms longer       before backward of microbatch 0 in stage 0 (pipe 0)",
        "  rank 1    waited 0.5 ms longer     before backward of microbatch 0 in stage 1 (pipe 0)",
    ]


def test_a_step_as_expected_has_no_differences(capsys, expected):
    path = expected((0, 2), (1, 2.5), unit=0.001)
    assert main(["trace", path, "--against", path]) == 0
    assert capsys.readouterr().out.splitlines()[9:] == ["no differences"]


def test_an_expected_step_in_another_unit_is_scaled_to_the_measured_work(capsys, trace, expected):
    assert main(["trace", str(trace), "--against", expected((0, 2), (1, 2.5)), "--fit"]) == 0
    assert "ended at 5.0 ms, expected 4.5 ms (1.111x)" in capsys.readouterr().out


def test_one_group_is_expected_of_every_group(capsys, tmp_path, expected):
    tracers = [Tracer(float) for _ in range(4)]
    for rank, tracer in enumerate(tracers):
        tracer.record("forward", "forward", rank % 2, rank % 2 + 1, (0, rank % 2, 0, 0))
        tracer.record("backward", "backward", 3, 5 + rank // 3, (0, rank % 2, 0, 0))
    write(tmp_path / "wide.json", [tracer.events() for tracer in tracers])
    assert main(["trace", str(tmp_path / "wide.json"), "--against", expected((0, 3), (1, 3))]) == 0
    (largest, *_) = capsys.readouterr().out.split("largest differences\n")[1].splitlines()
    assert largest == "  rank 3    took 1000 ms longer      in backward of microbatch 0 in stage 1 (pipe 0)"


@pytest.mark.parametrize("rows", [[(0, 2)], [(0, 2), (1, 3), (1, 3)]])
def test_timelines_of_different_programs_are_not_compared(capsys, tmp_path, trace, expected, rows):
    against = ["--against", expected(*rows), "--png", str(tmp_path / "p.png")]
    assert main(["trace", str(trace), *against]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "the two timelines are not of one program (first not " in captured.err
    assert not (tmp_path / "p.png").exists()


def test_a_truncated_expected_step_is_refused(capsys, trace, expected):
    path = expected((0, 2), (1, 3))
    Path(path).write_bytes(Path(path).read_bytes()[:-100])
    assert main(["trace", str(trace), "--against", path]) == 2
    assert f"the trace {path} is cut short" in capsys.readouterr().err


def test_a_scale_without_an_expected_step_is_refused(capsys, trace):
    assert main(["trace", str(trace), "--fit"]) == 2
    assert "add --against with a trace" in capsys.readouterr().err


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-100])


def without_passes(path):
    event = {"name": "matmul", "cat": "cpu_op", "ph": "X", "ts": 1, "dur": 2, "pid": 9, "tid": 8, "args": {}}
    write_json(path, {"traceEvents": [event]})


def without_places(path):
    event = {"name": "forward", "cat": "forward", "ph": "X", "ts": 1, "dur": 2, "pid": 0, "tid": 1, "args": {}}
    write_json(path, {"traceEvents": [event]})


def write_json(path, document):
    path.write_bytes(gzip.compress(json.dumps(document).encode()))


DAMAGE = [cut_short, without_passes, without_places]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_is_no_whole_trace_gets_one_message_and_draws_nothing(capsys, tmp_path, trace, damage):
    damage(trace)
    assert main(["trace", str(trace), "--png", str(tmp_path / "p.png")]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and str(trace) in captured.err and captured.err.count("\n") == 1
    assert not (tmp_path / "p.png").exists()


def test_a_step_that_is_not_there_is_refused_with_those_that_are(capsys, trace):
    assert main(["trace", str(trace), "--step", "9"]) == 2
    assert "holds no step 9 (steps: 3 to 5)" in capsys.readouterr().err


def test_for_programs_a_step_is_seconds_by_rank_and_category(capsys, trace):
    assert main(["trace", str(trace), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["step"], len(document["ranks"])) == (4, 2)
    assert document["seconds"] == pytest.approx(0.008)
    for rank in document["ranks"]:
        assert (rank["forward"], rank["backward"]) == (pytest.approx(0.001), pytest.approx(0.002))


def test_for_programs_a_comparison_has_every_pass(capsys, trace, expected):
    assert main(["trace", str(trace), "--json", "--against", expected((0, 2), (1, 3), unit=0.001)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(row["rank"], row["name"]) for row in document["passes"]] == [
        (rank, name) for rank in (0, 1) for name in ("forward", "backward")
    ]
    assert document["passes"][0]["took"] == pytest.approx(0.0) and document["last_backward"] == pytest.approx(0.005)


@pytest.mark.parametrize("name", ["pipedream", "pipedream_2bw", "async_1f1b"])
@pytest.mark.parametrize("command", [["schedule", "--steps=3"], ["simulate"]])
def test_a_segment_without_a_flush_is_drawn_as_well(capsys, tmp_path, name, command):
    path, shape = str(tmp_path / "segment.json"), [name, "--depth=2", "--microbatches=2"]
    assert main([command[0], *shape, *command[1:], f"--trace={path}"]) == 0
    assert main(["trace", path, "--png", str(tmp_path / "p.png")]) == 0
    assert (tmp_path / "p.png").exists() and "on 2 ranks" in capsys.readouterr().out
