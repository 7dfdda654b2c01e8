"""The cores that ranks of one machine may run on."""

import os

import pytest

from transports.shm.cores import count_cores, own_mask
from transports.tcp.transport import TcpTransport


def test_cores_of_several_processes_are_counted_once(monkeypatch):
    masks = []
    for cores in ({0, 1}, {1, 8191}):
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, cores=cores: cores)
        masks.append(own_mask())
    assert count_cores(masks) == 3


@pytest.mark.parametrize(("count", "known"), [(4, 4), (None, 1)])
async def test_a_system_that_binds_no_process_to_cores_offers_all(monkeypatch, count, known):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert count_cores([own_mask()]) == known
    await TcpTransport(0, 1, {}, max_kept=1 << 20).close()
