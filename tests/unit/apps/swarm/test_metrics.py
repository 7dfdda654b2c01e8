"""A row a step; of a step whose parameters are evaluated it waits for the loss, which comes before the next step."""

import asyncio
import json
from types import SimpleNamespace

from apps.swarm.metrics import StepLog
from pipelined.swarm.config import Rules
from pipelined.swarm.leader.evaluation import due
from pipelined.swarm.records import Evaluated, Head
from pipelined.swarm.view import SwarmView
from pipelined.training.optimizer import OptimizerConfig

RULES = Rules(model="m", stages=1, batch=1, samples=1, eval_every=2, eval_batch=1)


def head(step, lineage=None, members=("p",)):
    return Head(
        1, "m", step, members=[list(members)] if members else [], loss=float(step), lineage=lineage or f"r-{step}"
    )


class SettableView(SwarmView):
    """A view with plain attributes in place of what it reads from the directory."""

    head = leader = evaluated = None


async def told(path, *news):
    """What one process writes and says while it hears this, one thing after another."""
    view, said = SettableView(None, None), []
    is_due = lambda each: due(each, view.evaluated, RULES, 5)  # noqa: E731
    trainer = SimpleNamespace(view=view, is_to_evaluate=is_due)
    log = StepLog(trainer, OptimizerConfig(0.1, 5), 7, path, said.append)
    following = asyncio.ensure_future(log.follow())
    for each in news:
        setattr(view, "head" if isinstance(each, Head) else "evaluated", each)
        view.look_again()
        for _ in range(5):
            await asyncio.sleep(0)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [(row["step"], row.get("loss"), row.get("eval_loss")) for row in rows], said


def run(path, *news):
    return asyncio.run(told(path, *news))


def test_the_loss_on_validation_data_is_in_the_row_of_the_step_that_led_there(tmp_path):
    news = [head(0), head(1), head(2), Evaluated(2, "r-2", 9.5), head(3), head(4), Evaluated(4, "r-4", 8.5), head(5)]
    rows, said = run(tmp_path / "rows", *news, Evaluated(5, "r-5", 7.5))
    assert rows == [(0, 1.0, None), (1, 2.0, 9.5), (2, 3.0, None), (3, 4.0, 8.5), (4, 5.0, 7.5)]
    assert [line for line in said if "eval" in line] == [
        "step 1: eval 9.5000",
        "step 3: eval 8.5000",
        "step 4: eval 7.5000",
    ]


def test_what_is_evaluated_where_nothing_was_trained_has_a_row_of_its_own(tmp_path):
    rows, said = run(tmp_path / "rows", head(5, members=()), Evaluated(5, "r-5", 7.5))
    assert rows == [(5, None, 7.5)]
    assert said == ["goes on from step 5, which all stages had saved", "step 5: eval 7.5000"]


def test_where_all_go_back_before_it_is_known_there_is_no_loss_and_training_goes_on(tmp_path):
    news = [head(3), head(4), head(3, lineage="r-3", members=()), head(4, lineage="r-4b"), Evaluated(4, "r-4b", 6.5)]
    rows, said = run(tmp_path / "rows", *news)
    assert rows == [(3, 4.0, None), (3, 4.0, 6.5)]
    assert "went back to step 3, which all stages had saved" in said
