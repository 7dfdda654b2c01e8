"""Wide layers use their devices better than narrow ones, and 8 bits are worth nearly twice the width."""

import pytest

from benchmarks.swarm_latency import LINE
from benchmarks.swarm_widths import SECONDS_PER_FLOP, TOKENS, grows, width


def test_utilisation_grows_with_the_width_and_with_8_bits():
    narrow, wide = width(256), width(2048)
    assert grows([narrow, wide]) and not grows([wide, narrow])
    assert narrow.percent["8 bit, 1"] == pytest.approx(2 * narrow.percent["16 bit, 1"], rel=0.25)
    compute, tensor = 4 * 24 * 256**2 * TOKENS * SECONDS_PER_FLOP, 2 * TOKENS * 256
    line_bound = 100 * compute / (3 * tensor / LINE)
    assert narrow.percent["16 bit, 8"] == pytest.approx(line_bound, rel=0.03), "inputs go there twice, and gradients"
