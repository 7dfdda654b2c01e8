"""Memory is what the machine has, or what a control group leaves of it, by the files of both versions of the kernel."""

import subprocess
import sys

import pytest

from pipelined.actors.device.host_memory import PeakMemory, free_memory, host_memory
from pipelined.actors.device.torch_devices import memory_of
from pipelined.errors import UsageError
from tests.launching import ROOT

MACHINE = {"proc/meminfo": "MemTotal:       1024 kB\nMemFree:         10 kB\nMemAvailable:    512 kB\n"}
V1, V2, HYBRID = "sys/fs/cgroup/memory", "sys/fs/cgroup", "sys/fs/cgroup/unified"


def root(path, *every):
    for name, text in {name: text for files in (MACHINE, *every) for name, text in files.items()}.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


def version_1(limit, used, group=V1, dropped=0):
    sizes = {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": used}
    stat = {"memory.stat": f"inactive_file 1\ntotal_inactive_file {dropped}\n"}
    return {f"{group}/{name}": f"{value}\n" for name, value in {**sizes, **stat}.items()}


def version_2(limit, used, group=V2, dropped=0):
    sizes = {"memory.max": limit, "memory.current": used, "memory.stat": f"anon 5\ninactive_file {dropped}"}
    return {f"{group}/{name}": f"{value}\n" for name, value in sizes.items()}


def of_process(*lines):
    return {"proc/self/cgroup": "".join(f"{line}\n" for line in lines)}


NO_LIMIT = 9223372036854771712
GROUPS = {
    "none": ([], (1 << 20, 1 << 19)),
    "of version 2": ([of_process("0::/"), version_2(65536, 1536)], (65536, 64000)),
    "of version 2, without a limit": ([of_process("0::/"), version_2("max", 1536)], (1 << 20, 1 << 19)),
    "of version 2, within others": (
        [of_process("0::/user/job"), version_2("max", 900, f"{V2}/user/job"), version_2(65536, 1536, f"{V2}/user")],
        (65536, 64000),
    ),
    "of version 2, beside version 1": ([of_process("0::/a"), version_2(4096, 96, f"{HYBRID}/a")], (4096, 4000)),
    "of version 1": ([of_process("4:memory:/a", "3:cpu:/b"), version_1(65536, 1536, f"{V1}/a")], (65536, 64000)),
    "of version 1, without a limit": ([of_process("4:memory:/"), version_1(NO_LIMIT, 1536)], (1 << 20, 1 << 19)),
    "in a container, with the host's path": (
        [of_process("4:memory:/docker/0123"), version_1(65536, 1536)],
        (65536, 64000),
    ),
    "of another kind": ([of_process("3:cpu,cpuacct:/b"), version_1(65536, 1536, f"{V1}/b")], (1 << 20, 1 << 19)),
    "full of a file's pages": ([of_process("0::/"), version_2(65536, 65536, dropped=40000)], (65536, 40000)),
    "full of a file's pages, version 1": ([of_process("4:memory:/"), version_1(65536, 65536, dropped=9)], (65536, 9)),
    "over its limit": ([of_process("0::/"), version_2(65536, 70000)], (65536, 0)),
    "of a full machine": ([of_process("0::/"), version_2(600 << 10, 0)], (600 << 10, 1 << 19)),
}


@pytest.mark.parametrize(("files", "found"), GROUPS.values(), ids=GROUPS)
def test_a_control_groups_limit_counts_where_it_is_less(tmp_path, files, found):
    assert host_memory(root(tmp_path, *files)) == found
    assert free_memory(tmp_path) == found[1]


def test_memory_that_no_file_tells_is_unknown(tmp_path):
    assert host_memory(tmp_path) == (None, None)
    with pytest.raises(UsageError, match="give --ram"):
        free_memory(tmp_path)


def test_an_errors_free_bytes_are_those_of_the_control_group(monkeypatch):
    monkeypatch.setattr("pipelined.actors.device.torch_devices.host_memory", lambda: (2 << 30, 3 << 20))
    assert memory_of("cpu") == "3.0 of 2,048.0 MiB"
    monkeypatch.setattr("pipelined.actors.device.torch_devices.host_memory", lambda: (None, None))
    assert memory_of("cpu") == "? of ? MiB"


def test_the_peak_of_memory_is_counted_from_a_reset_on(tmp_path):
    status = "VmHWM:\t{peak} kB\nVmRSS:\t{now} kB\n"
    at = root(tmp_path, {"proc/self/status": status.format(peak=900, now=300), "proc/self/clear_refs": ""})
    memory = PeakMemory(at)
    assert (at / "proc/self/clear_refs").read_text() == "5"
    (at / "proc/self/status").write_text(status.format(peak=812, now=350))
    assert memory.grown == 512 << 10
    assert PeakMemory(tmp_path / "nowhere").grown is None


PEAK = """
from pipelined.actors.device.host_memory import PeakMemory
memory = PeakMemory()
held = bytearray(64 << 20)
held[:: 4 << 10] = bytes(len(held) // (4 << 10))
del held
print(memory.grown)
"""
"""Its process has nothing else to free meanwhile, as the process of all tests may."""


def test_what_a_process_used_and_freed_is_in_its_peak():
    ended = subprocess.run([sys.executable, "-c", PEAK], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(ended.stdout) >= 60 << 20
