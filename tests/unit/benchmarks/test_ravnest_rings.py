"""The benchmark of rounds between clusters counts the bytes of the closed form, and no round beats its busiest line."""

import pytest

from benchmarks.ravnest_rings import LINE, Options, beside_bound, bytes_sent, cut, found_by, table


def test_a_node_sends_what_the_closed_form_says():
    """With C clusters 2 (C - 1) / C of what it holds."""
    uneven = cut([[60_000], [30_000, 90_000], []], 120_000)
    assert bytes_sent(uneven) == [640_000, 640_000, 320_000, 640_000, 320_000, 1_280_000]
    assert 1.0 <= beside_bound(uneven, [LINE] * 6, 1e-3) <= 1.2


def test_replies_behind_the_other_end_s_bytes_hold_up_no_ring():
    """It took 1.45 times the bound where a rank waited for each reply, and 1.45 with four pieces of 1/32 unanswered."""
    three = cut([[34_000, 68_000, 113_000], [], []], 120_000)
    assert 1.0 <= beside_bound(three, [LINE] * 6, 1e-3) <= 1.05


def test_the_table_has_every_figure():
    found = found_by(Options(layouts=2, elements=12_000))
    assert all(1.0 <= each for name in ("equal", "uneven") for each in found[name])
    assert found["speedups"][2] == pytest.approx(2, rel=0.2)
    assert "8 equal nodes a cluster" in table(found)
