"""The program that times all-reduces reports what was timed, beside what is promised."""

import pytest

from benchmarks.all_reduce import Options
from benchmarks.collectives.sum_row import MIB, Row, pairs


def row(nbytes, ours, mpi, gloo, ranks=2, late=0.0, **more):
    beside = {"mpi": [(ours, mpi)] * 3, "pass": [(ours, ours / 2)] * 3, "gloo": [(ours, gloo)] * 3}
    return Row("float32", nbytes, ranks, beside, late, **more)


def test_ratios_are_taken_within_each_round():
    taken = {"ours": [1.0, 10.0, 2.0], "mpi": [2.0, 40.0, 5.0], "pass": [1.0, 5.0, 1.0], "alone": [1.0] * 3}
    done = Row("float32", MIB, 2, {**pairs(taken), "gloo": [(1.0, 9.0)]}, 0.0)
    assert done.ratios("mpi") == [2.0, 2.5, 4.0] and done.ratio("mpi") == 2.5
    assert done.more_s == -3.0 and done.seconds == 2.0


@pytest.mark.parametrize(
    ("done", "short"),
    [
        (row(64 * MIB, 10e-3, 31e-3, 41e-3), []),
        (row(64 * MIB, 10e-3, 29e-3, 41e-3), ["mpi"]),
        (row(64 * MIB, 10e-3, 29e-3, 41e-3, ranks=4), []),
        (row(16 * MIB, 2e-3, 2.9e-3, 9e-3), ["mpi"]),
        (row(4 * MIB, 1e-3, 1.01e-3, 3.1e-3), []),
        (row(MIB, 1e-3, 0.86e-3, 3.1e-3, ranks=4), ["gloo"]),
        (row(1024, 20e-6, 4e-6, 1e-3), ["mpi"]),
        (row(1024, 20e-6, 6e-6, 1e-3), []),
        (row(1024, 50e-6, 11e-6, 1e-3, ranks=4), []),
        (row(1024, 20e-6, 6e-6, 1e-3, late=6e-3), ["late"]),
        (row(MIB, 1e-3, 2e-3, 5e-3, per_byte=2.6), ["per byte"]),
        (row(MIB, 1e-3, 2e-3, 5e-3, extra=MIB // 2 + 8 * MIB), []),
        (row(MIB, 1e-3, 2e-3, 5e-3, extra=MIB // 2 + 8 * MIB + 1), ["memory"]),
    ],
)
def test_what_falls_short_is_named(done, short):
    assert done.short_of == short
    assert ("short" in done.line()) == bool(short)


def test_sums_never_overflow():
    for ranks in (2, 4, 8, 64, 1024):
        assert 1e-20 * 10 * ranks ** Options().calls("float32", 1024, ranks) < 1e38
        assert 6 * ranks ** Options().calls("float16", 1024, ranks) < 65504
