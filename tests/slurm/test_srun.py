"""Under a real Slurm: four nodes on this machine, brought up for one command and gone after it."""

import shutil
import sys
from pathlib import Path

import pytest

from tests.launching import CLUSTER, launched, launched_by_slurm, python_with

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun")
MISSING = [name for name in PROGRAMS if not shutil.which(name)]

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"Slurm is not installed (missing: {', '.join(MISSING)})"),
    pytest.mark.timeout(200),
]


def srun(*arguments, nodes=4):
    """Run a Python program on every node of a fresh cluster."""
    return launched_by_slurm(python_with("mpich"), *arguments, nodes=nodes, timeout=60)


def test_the_ranks_of_all_nodes_form_one_world():
    done = srun("-c", "from mpi4py.MPI import COMM_WORLD as w; print(*w.allgather(w.rank))")
    assert (done.returncode, done.stdout) == (0, "0 1 2 3\n" * 4), done.stderr


TALK = """
import asyncio
from transports import new_event_loop, open_transport

async def main():
    transport = await open_transport("mpi://")
    peers, key = range(transport.world_size), (0, "talk")
    for turn in range(20):
        for peer in peers:
            await transport.send(peer, key, note=[transport.rank, turn])
    heard = [(await transport.receive(peer, key)).note for turn in range(20) for peer in peers]
    assert heard == [[peer, turn] for turn in range(20) for peer in peers], heard
    await transport.close()

asyncio.Runner(loop_factory=new_event_loop).run(main())
"""


@pytest.mark.parametrize("module", ["ucx", "ofi"])
def test_ranks_on_nodes_of_their_own_hear_all_and_close(module, monkeypatch):
    """A receive left open for anybody hears one frame of each peer over MPICH's UCX module, and closing hung."""
    monkeypatch.setenv("MPIR_CVAR_CH4_NETMOD", module)
    done = srun("-c", TALK)
    assert done.returncode == 0, done.stderr


def test_a_failing_program_fails_the_job():
    done = srun("-c", "raise SystemExit(7)", nodes=2)
    assert done.returncode == 7


def test_the_cluster_is_gone_after_its_command(tmp_path):
    show = "import os, pathlib; print(pathlib.Path(os.environ['SLURM_CONF']).parent)"
    done = launched([CLUSTER, 1, 1, sys.executable, "-c", show], timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() and not Path(done.stdout.strip()).exists()
