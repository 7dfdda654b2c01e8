"""`python -m pipelined trace`: which step it draws, and what it says to a file that is no trace."""

import gzip
import json

import pytest

from pipelined.__main__ import main
from pipelined.trace import Tracer, write

STEPS = (3, 4, 5)


@pytest.fixture
def trace(tmp_path):
    """Two ranks, three steps of 10 ms each, with everything a rank can do."""
    tracers = [Tracer(float) for _ in range(2)]
    for step in STEPS:
        begin = 7.0 + 0.010 * step
        for rank, tracer in enumerate(tracers):
            place = (step, rank, 0, 0)
            tracer.record("receive", "activation", begin, begin + 0.001, place)
            tracer.record("forward", "forward", begin + 0.001 + 0.001 * rank, begin + 0.002 + 0.001 * rank, place)
            tracer.record("backward", "backward", begin + 0.004, begin + 0.006, place)
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


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-100])


def not_gzipped(path):
    path.write_text("{}")


def of_another_kind(path):
    write_json(path, {"events": []})


def a_list(path):
    write_json(path, [1, 2])


def without_passes(path):
    event = {"name": "matmul", "cat": "cpu_op", "ph": "X", "ts": 1, "dur": 2, "pid": 9, "tid": 8, "args": {}}
    write_json(path, {"traceEvents": [event]})


def without_places(path):
    event = {"name": "forward", "cat": "forward", "ph": "X", "ts": 1, "dur": 2, "pid": 0, "tid": 1, "args": {}}
    write_json(path, {"traceEvents": [event]})


def empty(path):
    path.write_bytes(b"")


def gone(path):
    path.unlink()


def write_json(path, document):
    path.write_bytes(gzip.compress(json.dumps(document).encode()))


DAMAGE = [cut_short, not_gzipped, of_another_kind, a_list, without_passes, without_places, empty, gone]


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
