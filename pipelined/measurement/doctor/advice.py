"""Advice from an examination. Each function checks one condition; an advice is a fact with its numbers and a remedy.

An advice is given only if its remedy helps; facts without a remedy are left to the report.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pipelined.measurement.doctor.examination import Examination, ExaminedNode
from pipelined.measurement.doctor.libraries import WHEELS

MIN_MEMORY = 1 << 30
"""Free bytes that a rank needs; torch alone takes a third of them."""
MIN_SHARED = 64 << 20
"""Free bytes of shared memory that a rank needs."""
SLOW_S = 1e-9
"""Seconds per byte between nodes above which compression of messages saves time."""


@dataclass(frozen=True)
class Advice:
    """One thing to change.

    Args:
        fact: the fault, with its numbers.
        remedy: the action to take.
        blocks_training: whether training cannot start before that.
    """

    fact: str
    remedy: str
    blocks_training: bool = False

    def __str__(self) -> str:
        return f"{self.fact}: {self.remedy}"


def advise(examination: Examination) -> list[Advice]:
    """All advice; the faults that stop training come first."""
    remarks = [advice for rule in JOB_RULES for advice in rule(examination)]
    for node in examination.nodes:
        remarks += [advice for rule in NODE_RULES for advice in rule(examination, node)]
    return sorted(dict.fromkeys(remarks), key=lambda advice: not advice.blocks_training)


def _connection_error(examination: Examination) -> Iterator[Advice]:
    if examination.connection_error:
        fact, _, remedy = examination.connection_error.rpartition("; ")
        yield Advice(fact or remedy, remedy if fact else "see the other advice", blocks_training=True)


def _one_rank(examination: Examination) -> Iterator[Advice]:
    ranks = sum(len(node.ranks) for node in examination.nodes)
    if examination.speed is None and examination.connection_error is None and examination.nodes[0].libraries.mpi:
        fact = f"links were not measured (ranks: {ranks})"
        yield Advice(fact, "start several: mpirun -n 4 python -m pipelined doctor")


def _versions(examination: Examination) -> Iterator[Advice]:
    first = examination.nodes[0]
    for node in examination.nodes[1:]:
        for name, first_version, version in (
            ("MPI", first.libraries.mpi, node.libraries.mpi),
            ("torch", first.libraries.torch, node.libraries.torch),
            ("Python", first.machine.python, node.machine.python),
        ):
            if first_version != version:
                versions = f"{first.machine.host}: {first_version}, {node.machine.host}: {version}"
                fact = f"nodes have different {name} ({versions})"
                yield Advice(fact, "install the same on all", blocks_training=name == "MPI")


def _slow_links(examination: Examination) -> Iterator[Advice]:
    hop = examination.speed and examination.speed.far
    if hop and hop.beta > SLOW_S:
        fact = f"links between nodes carry {1e-9 / hop.beta:.2f} GB/s"
        remedy = "--compress blockwise8 quarters what stages send; --width sums gradients over them once a step"
        yield Advice(fact, remedy)


def _mpi(examination: Examination, node: ExaminedNode) -> Iterator[Advice]:
    libraries = node.libraries
    host = node.machine.host
    wheels = [f"{name} {libraries.packages[name]}" for name in WHEELS if name in libraries.packages]
    if len(wheels) > 1:
        names = ", ".join(wheels)
        fact = f"{len(wheels)} MPI wheels are installed on {host} and overwrite each other's mpirun ({names})"
        yield Advice(fact, f"pip uninstall {' '.join(name.split()[0] for name in wheels[1:])}")
    uses_mpi = examination.launch.url.startswith("mpi")
    if "mpi4py" not in libraries.packages:
        yield Advice(f"mpi4py is not installed on {host}", "pip install 'pipelined[mpich]'", blocks_training=uses_mpi)
    elif libraries.mpi is None:
        remedy = "pip install mpich" if not wheels else f"pip install --force-reinstall mpi4py {wheels[0].split()[0]}"
        fact = f"no MPI library can be loaded on {host} ({libraries.mpi_error})"
        yield Advice(fact, remedy, blocks_training=uses_mpi)
    elif libraries.mpirun is None:
        yield Advice(f"there is no mpirun in the PATH of {host}", "activate the environment that has it")
    elif wheels and not libraries.mpirun_is_ours:
        fact = f"mpirun on {host} is not that of this Python's environment ({libraries.mpirun})"
        yield Advice(fact, "activate the environment, so that its mpirun comes first in PATH")


def _torch(examination: Examination, node: ExaminedNode) -> Iterator[Advice]:
    if node.libraries.torch is None:
        fact = f"torch cannot be imported on {node.machine.host} ({node.libraries.torch_error})"
        yield Advice(fact, "pip install torch; schedules, simulation and planning do without", blocks_training=True)


def _cores(examination: Examination, node: ExaminedNode) -> Iterator[Advice]:
    machine = node.machine
    ranks = len(node.ranks)
    cores = float(min(machine.cores, machine.quota or machine.cores))
    threads = machine.threads or max(1, int(cores))
    if len(node.libraries.devices) >= ranks:
        return
    if ranks > cores:
        fact = f"{ranks} ranks share {cores:g} cores on {machine.host}"
        threads_remedy = "" if machine.threads == 1 else "set OMP_NUM_THREADS=1; "
        ranks_remedy = f"start at most {max(1, int(cores))} there"
        yield Advice(fact, f"{threads_remedy}{ranks_remedy}, or expect steps {ranks / cores:.1f} times as long")
    elif ranks > 1 and ranks * threads > cores:
        setting = f"OMP_NUM_THREADS={machine.threads}" if machine.threads else "OMP_NUM_THREADS is not set"
        fact = f"{ranks} ranks of up to {threads} threads share {cores:g} cores on {machine.host} ({setting})"
        yield Advice(fact, f"set OMP_NUM_THREADS={max(1, int(cores) // ranks)}")


def _devices(examination: Examination, node: ExaminedNode) -> Iterator[Advice]:
    ranks = len(node.ranks)
    devices = len(node.libraries.devices)
    if 0 < devices < ranks:
        fact = f"{ranks} ranks share {devices} GPU{'s' * (devices > 1)} on {node.machine.host}"
        yield Advice(fact, f"start {devices} there")


def _memory(examination: Examination, node: ExaminedNode) -> Iterator[Advice]:
    ranks = len(node.ranks)
    available = node.machine.available
    shared = node.machine.shared
    if available is not None and available < MIN_MEMORY * ranks:
        fact = f"{available / 2**30:.1f} GiB are free for {ranks} ranks on {node.machine.host}"
        yield Advice(fact, f"start fewer, or end what takes the rest; a rank needs {MIN_MEMORY >> 30} GiB")
    if ranks > 1 and shared is not None and shared < MIN_SHARED * ranks:
        fact = f"{shared >> 20} MiB of shared memory are free for {ranks} ranks on {node.machine.host}"
        yield Advice(fact, f"give /dev/shm {MIN_SHARED * ranks >> 20} MiB (docker run --shm-size)")


def _reading(examination: Examination, node: ExaminedNode) -> Iterator[Advice]:
    if node.machine.ptrace_scope and not node.machine.privileged and len(node.ranks) > 1:
        fact = f"ranks on {node.machine.host} may not read each other's memory, so MPI copies twice"
        yield Advice(f"{fact} (ptrace_scope: {node.machine.ptrace_scope})", "sysctl kernel.yama.ptrace_scope=0")


JOB_RULES = (_connection_error, _one_rank, _versions, _slow_links)
NODE_RULES = (_mpi, _torch, _cores, _devices, _memory, _reading)
