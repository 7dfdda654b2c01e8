"""The report of rank 0 on a swarm's steps: each once, with its evaluation."""

import json
from dataclasses import replace

from apps.common.run.report import Report
from apps.gpt2.swarm.report import ActiveTime, StepReporter
from pipelined.swarm.records.committed_steps import StepCommitted, StepEvaluated, StepsBegan
from pipelined.swarm.records.steps import Head
from pipelined.training.optimizer import OptimizerConfig

START = Head(2, "a")


def head(step, lineage="r"):
    return replace(START, step=step, lineage=lineage, members=[["p"], ["q"]], scale=1.0, loss=float(step), norm=0.5)


def committed(step, evaluates=False):
    return StepCommitted(head(step), 0.5, evaluates)


class Device:
    busy = 0.0


class OneRank:
    rank, world_size = 0, 1


def follow(path, *events, steps=3):
    """The result of the reporter, and its rows."""
    with Report(True, first_step=0, steps=steps, tokens=64, metrics=path) as report:
        active_time, optimizer_settings = ActiveTime(OneRank(), Device()), OptimizerConfig(1e-2, steps)
        reporter = StepReporter(optimizer_settings, active_time=active_time, report=report)
        for event in events:
            reporter.report(event)
    return reporter.loss, [json.loads(line) for line in path.read_text().splitlines()]


def test_every_step_is_reported_once_with_its_evaluation(tmp_path):
    events = committed(1), committed(2, True), StepEvaluated(head(2), 0.25), committed(3, True)
    loss, rows = follow(tmp_path / "rows", StepsBegan(START, False, None), *events, StepEvaluated(head(3), 0.125))
    assert loss == 0.125
    assert [(row["step"], row["loss"], row.get("eval_loss")) for row in rows] == [
        (0, 1.0, None),
        (1, 2.0, 0.25),
        (2, 3.0, 0.125),
    ]
    assert all(row["tokens"] == 64 and row["idle_fraction"] == 1.0 for row in rows)


def test_a_rollback_is_printed_and_the_step_before_it_has_no_loss(tmp_path, capsys):
    events = committed(2, True), StepsBegan(replace(START, step=1), True, None), committed(2, True)
    loss, rows = follow(tmp_path / "rows", *events, StepEvaluated(head(2), 0.5))
    assert (loss, [(row["step"], row.get("eval_loss")) for row in rows]) == (0.5, [(1, None), (1, 0.5)])
    assert "rolled back to step 1" in capsys.readouterr().out


def test_a_run_that_begins_at_its_end_is_evaluated(tmp_path):
    last = replace(START, step=4)
    for events in ([StepsBegan(last, False, 0.5)], [StepsBegan(last, False, None), StepEvaluated(last, 0.5)]):
        (tmp_path / "rows").unlink(missing_ok=True)
        assert follow(tmp_path / "rows", *events, steps=4) == (0.5, [{"step": 4, "eval_loss": 0.5}])
