"""A swarm learns what one process learns, and what was kept is not trained again."""

from dataclasses import replace

import pytest

from apps.common.lm.data.text import read_text
from apps.swarm.config import TrainingConfig
from benchmarks.swarm.convergence_table import LAST
from benchmarks.swarm.language_model import Lesson, Trained, alone, together
from benchmarks.swarm_convergence import ARMS, Options, found
from pipelined.errors import UsageError

PLAYS = read_text((), "bytes")
FLAT, HIGH = [2.0] * (2 * LAST), [3.0] * (2 * LAST)


def lesson(**changed):
    sizes = {"layers": 1, "d_model": 16, "heads": 2, "seq": 8, "microbatch": 2, "batch": 8, "steps": 12, "warmup": 2}
    text = replace(PLAYS, validation=PLAYS.validation[:2000])
    return Lesson.of(TrainingConfig(**sizes | {"lease": 1.0, "rebalance": 0.0} | changed), text)


def test_a_swarm_learns_what_one_process_learns_while_peers_die_and_join():
    plain, heard = lesson(), []
    trained = together(plain, lambda *said: heard.append(said), replicas=2, every_s=0.8)
    one = alone(plain, lambda *_: None)
    assert trained.died and trained.came
    assert trained.losses == pytest.approx(one.losses, rel=1e-5) and trained.losses[0] == one.losses[0]
    assert trained.score == pytest.approx(one.score, rel=1e-5)
    assert heard == list(enumerate(trained.losses, 1))


def test_the_score_is_the_mean_over_the_windows_of_what_the_stages_make_of_them():
    """Untrained stages score as a first step's loss does on the same sequences, one by one."""
    plain = lesson(steps=1, clip=0.0)
    score = plain.score([plain.stage(index) for index in range(3)])
    inputs, targets = plain.windows

    def feed(which):
        return (inputs[2 * which.index :][:2].copy(),), (targets[2 * which.index :][:2].copy(),)

    rows = len(inputs) // 64 * 64
    whole = replace(plain, feed=feed, rules=replace(plain.rules, batch=rows // 2, samples=float(rows)))
    assert alone(whole, lambda *_: None).losses == [pytest.approx(score, rel=1e-6)]


def test_microbatches_summed_backwards_differ_by_rounding_alone():
    forwards, backwards = (alone(lesson(), lambda *_: None, order).losses for order in (False, True))
    assert forwards != backwards == pytest.approx(forwards, rel=1e-5)


def test_what_was_kept_is_not_trained_again_and_not_taken_for_another(tmp_path, monkeypatch):
    trainings = []

    def train(options, name, seed):
        trainings.append((name, seed))
        return Trained([1.0], 2.0, 3, 4)

    monkeypatch.setattr("benchmarks.swarm_convergence.train", train)
    options = Options(keep=tmp_path)
    first, again = (found(options, "swarm, churn", 1) for _ in range(2))
    assert first == again == Trained([1.0], 2.0, 3, 4) and trainings == [("swarm, churn", 1)]
    found(options, "swarm, churn", 2)
    assert trainings[1:] == [("swarm, churn", 2)]
    with pytest.raises(UsageError, match="--keep"):
        found(replace(options, steps=80), "swarm, churn", 1)


def test_every_way_is_held_to_a_plain_one_of_the_same_model():
    for arm in ARMS.values():
        plain = ARMS[arm.plain]
        assert not plain.swarm and plain.plain == arm.plain and plain.squeeze == arm.squeeze
