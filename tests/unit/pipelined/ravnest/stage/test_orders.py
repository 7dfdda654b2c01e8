"""The order of a node is written whole or not at all, and training goes on where it cannot be written."""

import errno
import threading
from pathlib import Path

import pytest

from pipelined.errors import UsageError
from pipelined.ravnest.cluster_place import ClusterPlace
from pipelined.ravnest.records.generation import Generation
from pipelined.ravnest.records.places import Holder, StagePlace
from pipelined.ravnest.stage.orders import OrderDirectory, OrderRecorder, read_orders
from pipelined.state.stages.versions import Version
from pipelined.traces.tracer import NullTracer

GENERATION = Generation(1, [[StagePlace(Holder("a", "at a", 7), 0, 2, 1)]], Version(0, ""))


async def test_a_failed_write_keeps_the_order_before_and_names_the_file(tmp_path, monkeypatch, caplog):
    threads = list[int]()
    recorder = OrderRecorder(OrderDirectory(tmp_path, "task"), GENERATION, ClusterPlace(0, 0), 2, tracer=NullTracer())
    recorder.tracer.record("forward", "forward", 0.0, 1.0, (0, 0, 0, 0))
    await recorder.write()

    def full_disk(path, text):
        threads.append(threading.get_ident())
        path.write_bytes(text.encode()[: len(text) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full_disk)
    recorder.tracer.record("forward", "forward", 1.0, 2.0, (0, 0, 1, 0))
    with caplog.at_level("WARNING", logger="pipelined"):
        await recorder.write()
    (said,) = caplog.messages
    assert str(tmp_path / "1-0-0-a.json") in said and "No space left" in said
    (found,) = read_orders(tmp_path)
    assert found.orders[0, 0].instructions == ("F0",)
    assert threads and threads[0] != threading.get_ident(), "the event loop goes on"


def test_deep_json_is_no_order(tmp_path):
    (tmp_path / "order.json").write_text("[" * 100_000)
    with pytest.raises(UsageError, match="is no order of this release"):
        read_orders(tmp_path)
