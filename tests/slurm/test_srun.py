"""Under a real Slurm: four nodes on this machine, brought up for one command and gone after it."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.absent import absent
from tests.launching import CLUSTER, ROOT, launched, launched_by_slurm, mpirun, python_with

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun")
MISSING = [name for name in PROGRAMS if not shutil.which(name)]

pytestmark = pytest.mark.timeout(200)


@pytest.fixture(autouse=True)
def slurm():
    """Slurm's programs, or no test."""
    if MISSING:
        absent(f"Slurm is not installed (missing: {', '.join(MISSING)})")


def srun(*arguments, nodes=4):
    """Run a Python program on every node of a fresh cluster."""
    return launched_by_slurm(python_with("mpich"), *arguments, nodes=nodes, timeout=110)


TALK = """
import asyncio, os
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
    os.write(1, f"heard {len(heard)} {os.environ['MPIR_CVAR_CH4_NETMOD']}\\n".encode())

asyncio.Runner(loop_factory=new_event_loop).run(main())
"""


def test_the_ranks_of_all_nodes_form_one_world_hear_all_and_close():
    """Over UCX the world came about by chance: Slurm cut the address that MPICH tells (`transports.mpi.opening`)."""
    done = srun("-c", TALK)
    assert (done.returncode, done.stdout) == (0, "heard 80 ofi\n" * 4), done.stderr


def test_ranks_that_share_no_memory_hear_all_and_close_over_ucx():
    """A receive left open for any sender received one frame of each peer over MPICH's UCX module, and closing hung."""
    command, env = mpirun("mpich", 4, "-c", TALK)
    alone = {"MPIR_CVAR_NOLOCAL": "1", "MPIR_CVAR_CH4_NETMOD": "ucx", "UCX_TLS": "tcp,self"}
    done = launched(command, timeout=110, env=env | alone)
    assert (done.returncode, done.stdout) == (0, "heard 80 ucx\n" * 4), done.stderr


def test_a_failing_program_fails_the_job():
    done = srun("-c", "raise SystemExit(7)", nodes=2)
    assert done.returncode == 7


def test_the_cluster_is_gone_after_its_command(tmp_path):
    show = "import os, pathlib; print(pathlib.Path(os.environ['SLURM_CONF']).parent)"
    done = launched([CLUSTER, 1, 1, sys.executable, "-c", show], timeout=110)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() and not Path(done.stdout.strip()).exists()


def test_a_program_that_srun_started_names_srun_as_its_launcher():
    code = "import os; from pipelined.process.launch import detect; print(detect(os.environ).launcher)"
    done = srun("-c", code, nodes=2)
    assert (done.returncode, done.stdout) == (0, "srun\n" * 2), done.stderr


@pytest.mark.in_turns(2)
def test_the_batch_script_of_the_docs_starts_four_ranks_with_its_flags(tmp_path):
    script, out = ROOT / "docs" / "deploy" / "gpt2.sbatch", tmp_path / "out"
    path = f"{python_with('mpich').parent}:{os.environ['PATH']}"
    submitted = f"sbatch --output='{out}' '{script}' --batch 64 --print-config"
    ended = 'while [ -n "$(squeue -h)" ]; do sleep 0.1; done'  # sbatch --wait looks only after ten seconds
    done = launched([CLUSTER, 4, 4, "bash", "-c", f"{submitted} && {ended}"], timeout=110, env={"PATH": path})
    assert done.returncode == 0, done.stderr
    told = json.loads(out.read_text())["resolved"]
    assert (told["depth"], told["batch"], told["resume"], told["checkpoint"]) == (4, 64, "auto", "saved")
