"""Where a job is drained depends on its flags alone."""

import pytest

from apps.gpt2.config import Config
from apps.gpt2.spans import due, next_drain


@pytest.mark.parametrize(
    "done, eval_every, save_every, drain",
    [
        (0, 0, 0, 100),
        (0, 10, 0, 10),
        (10, 10, 0, 20),
        (7, 10, 4, 8),
        (8, 10, 4, 10),
        (96, 0, 40, 100),
        (0, 300, 200, 100),
    ],
)
def test_the_next_drain_is_the_first_evaluation_checkpoint_or_end(done, eval_every, save_every, drain):
    assert next_drain(Config(steps=100, eval_every=eval_every, save_every=save_every), done) == drain


def test_what_is_due_is_due_at_a_drain():
    config = Config(steps=60, eval_every=9, save_every=4)
    drains, done = [], 0
    while done < config.steps:
        done = next_drain(config, done)
        drains.append(done)
    assert drains == [n for n in range(1, 61) if due(n, 9) or due(n, 4) or n == 60]
    assert not due(5, 0)
