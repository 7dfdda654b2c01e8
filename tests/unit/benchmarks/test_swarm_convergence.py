"""A swarm learns what one process learns, and the benchmark's arithmetic tells when it does not."""

import pytest

from apps._swarm_config import Subject
from apps._text import read_text
from benchmarks._swarm_lm import Lesson, Trained, alone, together
from benchmarks.swarm_convergence import ARMS, LAST, PLAIN, noise_of, rows_of, smoothed


def lesson(**changed):
    sizes = {"layers": 1, "d_model": 16, "heads": 2, "seq": 8, "microbatch": 2, "batch": 8, "steps": 12, "warmup": 2}
    return Lesson.of(Subject(**sizes | {"lease": 1.0, "rebalance": 0.0} | changed), read_text((), "bytes"))


def test_a_swarm_whose_peers_die_and_come_has_the_losses_of_one_process():
    plain = lesson()
    trained = together(plain, replicas=2, every_s=0.8)
    assert trained.died and trained.came
    assert trained.losses == pytest.approx(alone(plain), rel=1e-5)


def test_a_curve_is_smoothed_over_its_last_steps():
    assert smoothed([1.0] * LAST + [1.0 + LAST]) == [1.0, 2.0]


def test_rows_tell_the_farthest_point_and_the_share_of_the_plain_loss():
    found = {(name, seed): Trained([2.0] * 30, 1, 1) for name in ARMS for seed in (0, 1)}
    found |= {(PLAIN, 0): Trained([2.0] * 30, 0, 0), (PLAIN, 1): Trained([2.5] * 30, 0, 0)}
    plain, *rows = rows_of(found, (0, 1))
    assert plain.off == 0 and plain.within(0.0) and noise_of(plain) == pytest.approx(0.5 / 2**0.5)
    assert all(row.off == pytest.approx(2 / 2.25 - 1) and row.farthest == (0.0, 0.5) and row.died == 2 for row in rows)
    assert not any(row.within(1.0) for row in rows)
