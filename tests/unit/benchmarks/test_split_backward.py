"""The program that times a backward in two halves reports what was timed."""

import math

from benchmarks.split_backward import Bench, Options, Round, report

TINY = Options(d_model=8, heads=2, tokens=3)


def test_a_round_times_both_and_leaves_twice_the_gradient():
    bench = Bench(TINY)
    assert bench.round().ratio > 0
    gradients = [p.grad.clone() for p in bench.block.parameters()]
    bench.round()
    for parameter, before in zip(bench.block.parameters(), gradients, strict=True):
        assert (parameter.grad - 2 * before).abs().max() <= 1e-5 * before.abs().max()


def test_the_report_is_of_the_ratio_within_each_round():
    rounds = [Round(2.0, 1.5, 0.5), Round(20.0, 12.0, 10.0), Round(4.0, 3.0, 1.8)]
    row = report(TINY, rounds)
    assert math.isclose(row["ratio"], 1.1) and row["whole_s"] == 4.0
    assert row["ratio_lower_quartile"] <= row["ratio"] <= row["ratio_upper_quartile"]
