"""Wide layers use their devices better than narrow ones, and 8 bits are worth nearly twice the width."""

import pytest

from benchmarks.swarm_latency import LINE
from benchmarks.swarm_widths import SECONDS_PER_FLOP, TOKENS, grows, width


def test_utilisation_grows_with_the_width_and_with_8_bits():
    found = [width(each) for each in (256, 2048)]
    assert grows(found) and not grows(found[::-1])
    assert found[0].percent["8 bit, 1"] == pytest.approx(2 * found[0].percent["16 bit, 1"], rel=0.25)


def test_with_queues_a_narrow_layer_is_as_fast_as_its_line():
    compute, tensor = 4 * 24 * 512**2 * TOKENS * SECONDS_PER_FLOP, 2 * TOKENS * 512
    assert width(512).percent["16 bit, 8"] == pytest.approx(100 * compute / (3 * tensor / LINE), rel=0.03)
