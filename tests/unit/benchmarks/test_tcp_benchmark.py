"""What the TCP benchmarks measure runs, and what chance asks of a slow link is what the link draws."""

import asyncio

import pytest

from benchmarks import shaped_links, tcp
from benchmarks.harness.ranks import launch
from pipelined.aio.clock import run_virtual
from pipelined.errors import UsageError
from transports import open_local
from transports.emulation.options import LinkProfile


def test_what_a_slow_link_is_expected_to_take():
    assert shaped_links.expected(LinkProfile(delay=0.05, jitter=0.05)) == 0.05
    assert shaped_links.expected(LinkProfile(delay=0.1, loss=0.25)) == pytest.approx(0.1 + 0.4 * 0.25 / 0.5)


def test_what_chance_asks_of_a_slow_link_is_drawn_as_the_link_draws_it():
    async def main(turns):
        here, there = open_local("local://?delay=50ms&jitter=50ms&loss=0.2&seed=3", 2)
        loop, latencies = asyncio.get_running_loop(), []
        for turn in range(shaped_links.WARM_UP + turns):
            start = loop.time()
            await here.send(1, ("there", turn))
            await there.receive(0, ("there", turn))
            await there.send(0, ("back", turn))
            await here.receive(1, ("back", turn))
            latencies.append((loop.time() - start) / 2)
        await asyncio.gather(here.close(), there.close())
        return latencies[shaped_links.WARM_UP :]

    shape = LinkProfile(delay=0.05, jitter=0.05, loss=0.2, seed=3)
    asked = shaped_links.drawn(shape, 30)
    assert run_virtual(main(30)) == pytest.approx(asked, rel=1e-6)
    assert shaped_links.standard_error([1.5, 2.5], [1.0, 1.0]) == pytest.approx(0.5)


def test_a_small_crowd_is_answered_in_order():
    counts = launch(
        "benchmarks.links.tcp_crowd", 2, {"peers": 3, "in_flight": 4, "seconds": 0.2, "bytes": 64, "loop": "select"}
    )
    assert len(counts) == 3 and min(counts) >= 4


def test_a_slow_pair_is_measured():
    found = launch(
        "benchmarks.links.shaped_pair",
        2,
        {"url": "tcp://?delay=2ms", "loop": "select", "turns": 2, "streams": 1, "bytes": 64, "messages": 2},
    )
    assert min(found["latencies"]) >= 0.001 and found["rates"][0] > 0


def test_a_loop_that_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setattr("benchmarks.harness.ranks.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install uvloop"):
        tcp.Options(loop="uvloop")
