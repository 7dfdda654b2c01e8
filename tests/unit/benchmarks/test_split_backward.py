"""The program that times a backward in two halves computes whole gradients both times."""

from benchmarks.split_backward import Bench, Options

TINY = Options(d_model=8, heads=2, tokens=3)


def test_a_round_times_both_and_leaves_twice_the_gradient():
    bench = Bench(TINY)
    assert bench.round().ratio > 0
    gradients = [p.grad.clone() for p in bench.block.parameters()]
    bench.round()
    for parameter, before in zip(bench.block.parameters(), gradients, strict=True):
        assert (parameter.grad - 2 * before).abs().max() <= 1e-5 * before.abs().max()
