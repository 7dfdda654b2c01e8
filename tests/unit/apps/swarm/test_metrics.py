"""A row a step; the row of an evaluated step waits for the validation loss, which comes before the next step."""

import asyncio
import json

from apps.swarm.metrics import StepLog
from pipelined.aio.clock import VirtualClock, run_virtual
from pipelined.membership.directory import Change, Entry
from pipelined.swarm.records.committed_steps import CommittedSteps
from pipelined.swarm.records.steps import EVALUATED, Evaluation, Head
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import Rules
from pipelined.training.optimizer import OptimizerConfig

RULES = Rules(model="m", stages=1, batch=1, samples=1, eval_every=2, eval_batch=1)


def head(step, lineage=None, members=("p",)):
    return Head(
        1,
        "m",
        step,
        members=[list(members)] if members else [],
        scale=1.0,
        loss=float(step),
        lineage=lineage or f"r-{step}",
    )


async def log(path, *records):
    """The rows and lines of a log while its view reads these records, one after another."""
    view, said = SwarmView(None, VirtualClock()), []
    steps = CommittedSteps(view, RULES, VirtualClock(), 5)

    async def follow():
        with StepLog(OptimizerConfig(0.1, 5), 7, path, said.append) as log:
            async for event in steps.follow():
                log.log(event)

    following = asyncio.ensure_future(follow())
    for revision, record in enumerate(records, start=1):
        entries = {EVALUATED: record.pack()} if isinstance(record, Evaluation) else record.entries({})
        await VirtualClock().sleep(1.0)
        view.apply_changes([Change(key, Entry(value, revision), revision) for key, value in entries.items()])
    await VirtualClock().sleep(1.0)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [(row["step"], row.get("loss"), row.get("eval_loss")) for row in rows], said


def run(path, *records):
    return run_virtual(log(path, *records))


def test_the_loss_on_validation_data_is_in_the_row_of_the_step_that_led_there(tmp_path):
    news = [head(0), head(1), head(2), Evaluation(2, "r-2", 9.5), head(3), head(4), Evaluation(4, "r-4", 8.5), head(5)]
    rows, said = run(tmp_path / "rows", *news, Evaluation(5, "r-5", 7.5))
    assert rows == [(0, 1.0, None), (1, 2.0, 9.5), (2, 3.0, None), (3, 4.0, 8.5), (4, 5.0, 7.5)]
    assert [line for line in said if "eval" in line] == [
        "step 1: eval 9.5000",
        "step 3: eval 8.5000",
        "step 4: eval 7.5000",
    ]


def test_what_is_evaluated_where_nothing_was_trained_has_a_row_of_its_own(tmp_path):
    rows, said = run(tmp_path / "rows", head(5, members=()), Evaluation(5, "r-5", 7.5))
    assert rows == [(5, None, 7.5)]
    assert said == ["continues from step 5, which all stages had saved", "after 5 steps: eval 7.5000"]


def test_where_all_go_back_before_it_is_known_there_is_no_loss_and_training_goes_on(tmp_path):
    news = [head(3), head(4), head(3, lineage="r-3", members=()), head(4, lineage="r-4b"), Evaluation(4, "r-4b", 6.5)]
    rows, said = run(tmp_path / "rows", *news)
    assert rows == [(3, 4.0, None), (3, 4.0, 6.5)]
    assert "rolled back to step 3, which all stages had saved" in said
