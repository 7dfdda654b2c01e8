"""What a node offers on the virtual clock: lines and speeds of known answers, in one line of words."""

from contextlib import AsyncExitStack
from types import SimpleNamespace

import pytest

from apps.ravnest.flags.commands import Serve
from apps.ravnest.flags.config import RavnestConfig, RavnestTask
from apps.ravnest.offer import NOT_MEASURED, offer
from benchmarks.harness.timed_executor import TimedExecutor
from pipelined.measurement.timed.line import serve_line
from pipelined.membership.connection import LocalMember
from pipelined.membership.directory import EmbeddedDirectory, serve_directory
from pipelined.planner.trial import RandomTokens
from pipelined.ravnest.records.nodes import NodeRecord
from transports import Nursery
from transports.rpc.virtual.network import VirtualNetwork, address_of

pytestmark = pytest.mark.virtual


async def offered(told=(), listed=(), served=("directory",), ram=1 << 30):
    """What a node offers, with these flags and nodes in the directory; those named reply to who measures a line."""
    from apps.common.lm.models.gpt2 import UntiedGPT2
    from apps.ravnest.plan import layer_sizes
    from pipelined.training.job.numerics import Numerics

    task = RavnestTask(RavnestConfig(microbatch=2, seq=8), 256, "digest of a text")
    model = task.settings.model(256)
    feed = RandomTokens(256, (2, 8))
    training = SimpleNamespace(model=UntiedGPT2(model), feed=feed, numerics=Numerics())
    network = VirtualNetwork(delay=30e-3, rate=25e6)
    clock = network.clock("new")
    flags = Serve(address=SimpleNamespace(url=address_of("directory")), **{"ram": str(ram), **dict(told)})
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(Nursery())
        ends = {name: network.endpoint(name) for name in ("directory", "new", *listed)}
        for name in served:
            serve_line(ends[name])
        serving = tasks.create_task(serve_directory(ends["directory"], clock))
        stack.callback(serving.cancel)
        directory = EmbeddedDirectory(ends["new"], address_of("directory"), clock)
        for number, name in enumerate(listed, 1):
            record = NodeRecord(name, address_of(name), number, 1, 1.0, 0.0)
            await directory.transact({}, {f"nodes/{name}": record.pack()})
        executor = TimedExecutor({"forward": 0.01, "backward": 0.03}, clock)
        found = await offer(flags, task, training, LocalMember("new", ends["new"], directory, clock), executor)
        return *found, [layer.work for layer in layer_sizes(model, 2, 8)]


async def test_a_node_that_is_told_nothing_measures_its_line_to_the_coordinator_and_its_speed():
    capacity, words, work = await offered()
    assert capacity.bandwidth == pytest.approx(25e6, rel=0.02) and capacity.delay == pytest.approx(0.03, rel=0.02)
    assert capacity.flops == pytest.approx(sum(work) / (0.04 * len(work)))
    assert "1,024 MiB, 20" in words and "30 ms a way (measured)" in words and "Gflops (measured)" in words


async def test_listed_nodes_are_measured_before_the_coordinator():
    capacity, *_ = await offered(listed=["a", "b", "c"], served=["b"])
    assert capacity.bandwidth == pytest.approx(25e6, rel=0.02)


async def test_where_no_listed_node_replies_the_coordinator_is_measured():
    capacity, *_ = await offered(listed=["a", "b"])
    assert capacity.bandwidth == pytest.approx(25e6, rel=0.02)


async def test_a_line_to_which_none_replies_is_assumed():
    capacity, words, _ = await offered(served=[])
    assert (capacity.bandwidth, capacity.delay) == (NOT_MEASURED.rate, NOT_MEASURED.delay)
    assert "1,000 mbit and 0 ms a way (assumed: no node replies)" in words


async def test_what_a_node_is_told_is_not_measured():
    told = {"bandwidth": "200mbit", "delay": "5ms", "flops": "40G", "reliability": 0.5}
    capacity, words, _ = await offered(told)
    assert tuple(vars(capacity).values()) == (1 << 30, 25e6, 4e10, 0.005, 0.5)
    assert words == "1,024 MiB, 200 mbit and 5 ms a way, 40 Gflops"


async def test_a_fast_line_is_told_in_plain_digits():
    _, words, _ = await offered({"bandwidth": "13523mbit", "delay": "5ms", "flops": "40G", "reliability": 0.5})
    assert ", 13,520 mbit and" in words


async def test_a_node_too_small_for_any_layer_has_no_speed():
    capacity, words, _ = await offered(ram=1)
    assert capacity.flops == 0 and "no layer fits" in words
