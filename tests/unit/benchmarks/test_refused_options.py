"""Options of a benchmark that cannot be timed are refused by name, before anything starts."""

from importlib import import_module
from pathlib import Path

import pytest

from pipelined.errors import UsageError


@pytest.mark.parametrize(
    ("program", "options", "why"),
    [
        ("all_reduce", {"sizes": (2,)}, "--sizes"),
        ("all_reduce", {"halves": (123,)}, "--halves"),
        ("auto", {"ranks": (1, 2)}, "--ranks must be"),
        ("codecs", {"mib": (1, 0)}, "--mib must be at least 1"),
        ("endpoints", {"sizes": (0,)}, "--sizes"),
        ("point_to_point", {"sizes": (8, 0)}, "sizes"),
        ("point_to_point", {"compute_ms": -1.0}, "compute-ms"),
        ("shaped_links", {"shapes": ("delay=5",)}, "units us, ms, s"),
        ("shaped_links", {"shapes": ("wait=5",)}, "known: delay, jitter, rate, loss, seed"),
        ("soak", {"steps": 1000}, "give at least 1020"),
        ("soak", {"over": ("udp",)}, "known: tcp, mpi, swarm"),
        ("swarm_faults", {"phases": ("forwards",)}, "acknowledged"),
        ("swarm_hivemind", {"hivemind_python": Path("/no/python")}, "there is no"),
        ("swarm_throughput", {"microbatches": (8,)}, "4 D"),
        ("tcp", {"sizes": (0,)}, r"--sizes must be at least 1 \(it is 0\)"),
        ("tcp_all_reduce", {"sizes": (4, 6)}, r"whole float32 \(bytes: 6\)"),
        ("tcp_all_reduce", {"algorithms": ("rings",)}, "unknown algorithm rings; known: .*multi_ring"),
        ("torch_pipelining", {"torch": ("zb_x",)}, "no schedule of this contest: zb_x; known"),
    ],
)
def test_options_that_cannot_be_are_refused(program, options, why):
    with pytest.raises(UsageError, match=why):
        import_module(f"benchmarks.{program}").Options(**options)
