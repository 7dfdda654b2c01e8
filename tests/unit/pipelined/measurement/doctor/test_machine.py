"""The machine is read from the kernel's files, and what is not there is unknown."""

import pytest

from pipelined.measurement.doctor.machine import examine_machine

FILES = {
    "proc/meminfo": "MemTotal:       1024 kB\nMemFree:         10 kB\nMemAvailable:    512 kB\nHugePages_Total: 0\n",
    "proc/sys/kernel/yama/ptrace_scope": "1\n",
    "sys/fs/cgroup/cpu.max": "150000 100000\n",
    "sys/fs/cgroup/memory.max": "max\n",
}


def root(path, files):
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


def test_what_the_kernel_says_is_read(tmp_path):
    machine = examine_machine({}, root(tmp_path, FILES))
    assert (machine.memory, machine.available) == (1 << 20, 1 << 19)
    assert (machine.quota, machine.ptrace_scope, machine.threads) == (1.5, 1, 0)
    assert machine.cores >= 1 and machine.host and machine.shared is None


def test_a_control_groups_limit_counts_where_it_is_less(tmp_path):
    group_files = {"sys/fs/cgroup/memory.max": "65536\n", "sys/fs/cgroup/memory.current": "1536\n"}
    machine = examine_machine({}, root(tmp_path, FILES | group_files))
    assert (machine.memory, machine.available) == (65536, 64000)


def test_what_is_not_there_is_unknown(tmp_path):
    machine = examine_machine({}, tmp_path)
    unknown = (machine.memory, machine.available, machine.shared, machine.quota, machine.ptrace_scope)
    assert unknown == (None,) * 5


@pytest.mark.parametrize(
    ("text", "quota"), [("max 100000\n", None), ("50000 100000\n", 0.5), ("", None), ("1 0", None)]
)
def test_a_quota_is_in_cores(tmp_path, text, quota):
    assert examine_machine({}, root(tmp_path, {"sys/fs/cgroup/cpu.max": text})).quota == quota


@pytest.mark.parametrize(
    ("environ", "threads"),
    [({"OMP_NUM_THREADS": "3"}, 3), ({"MKL_NUM_THREADS": "2"}, 2), ({"OMP_NUM_THREADS": "x"}, 0)],
)
def test_threads_are_what_the_environment_says(environ, threads):
    assert examine_machine(environ).threads == threads
