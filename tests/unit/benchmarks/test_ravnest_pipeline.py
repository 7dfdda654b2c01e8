"""The benchmark of a cluster over slow lines, with its stages in one process on the virtual clock: the closed form."""

import asyncio

import pytest

from benchmarks.ravnest.stage import trained
from benchmarks.ravnest_pipeline import Options, plain, run_of, table
from pipelined.aio.clock import run_virtual
from pipelined.errors import UsageError
from tests.ravnest.story import at_once
from transports.rpc.virtual.network import VirtualNetwork, address_of
from transports.rpc.world import Worlds


def measured(options, schedule, backed=False):
    """What each stage measures, and then each backup."""

    async def everyone():
        asyncio.get_running_loop().run_in_executor = at_once
        network = VirtualNetwork(delay=options.delay_ms / 1e3)
        stages, backups = ([f"{kind}{n}" for n in range(len(options.seconds))] for kind in "sb")
        names = stages + backups * backed
        runs = run_of(options, schedule, [*map(address_of, stages)], [*map(address_of, backups)] * backed)
        worlds = [Worlds(network.endpoint(name), 1 << 20) for name in names]
        working = zip(worlds, runs, map(network.clock, names), strict=True)
        return await asyncio.gather(*(trained(*each) for each in working))

    return run_virtual(everyone())


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("ahead, share, alive", [(None, 1.0, [7, 4, 1]), (3, 3 / 7, [3, 2, 1])])
def test_each_microbatch_alive_is_a_seventh_of_the_slowest_stage_s_rate(ahead, share, alive):
    options = Options(ahead=ahead, microbatches=3, steps=8)
    found = plain(options, measured(options, "async_1f1b"), measured(options, "one_f_one_b"))
    assert found["share"] == pytest.approx(share, rel=1e-6)
    assert found["limits"] == found["alive"] == alive
    assert all(late <= most - 1 for late, most in zip(found["staleness"], alive, strict=True))
    assert f"{share:.1%}" in table(found)


def test_a_backup_for_every_node_costs_nothing_where_processing_takes_no_time():
    options = Options(microbatches=3, steps=8, backups=True)
    ours, backed = measured(options, "async_1f1b"), measured(options, "async_1f1b", backed=True)
    found = plain(options, ours, measured(options, "one_f_one_b"), backed)
    assert found["backups"] == pytest.approx(1.0, rel=1e-6)
    assert "100.0% of the rate without" in table(found)
    assert len(backed) == 6
    assert len({(each["alive"], tuple(each["staleness"])) for each in backed}) == 3


def test_stages_without_a_backward_are_refused():
    with pytest.raises(UsageError, match="give one number for each stage"):
        _ = Options(backward_ms="20,20").seconds
