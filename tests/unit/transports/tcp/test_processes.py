"""tcp between real processes: started by hand, started by torchrun, and one of them killed."""

import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.launching import ROOT, launched

RING = Path(__file__).with_name("tcp_ring.py")
SURROUNDINGS = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def port():
    """A free port; kept bound, not listening, so that nothing else is given it, until the ranks start."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


@contextmanager
def ranks(world_size, url, *arguments, keys=None, **variables):
    """The processes of a world, started by hand; none of them outlives the test."""
    common = {**os.environ, **SURROUNDINGS, "WORLD_SIZE": str(world_size), **variables}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    command = [sys.executable, str(RING), url, *arguments]
    rank_variables = [{"RANK": str(rank), "PIPELINED_KEY": keys[rank] if keys else ""} for rank in range(world_size)]
    processes = [subprocess.Popen(command, env={**common, **variables}, **streams) for variables in rank_variables]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def ends(processes):
    """What every process came to: (exit code, stdout, stderr)."""
    told = [process.communicate(timeout=30) for process in processes]
    return [(process.returncode, *words) for process, words in zip(processes, told, strict=True)]


def test_four_processes_connect_by_the_url_with_a_key(port):
    with ranks(4, f"tcp://127.0.0.1:{port}", keys=["a secret"] * 4) as processes:
        assert ends(processes) == [(0, f"rank {rank} of 4: 6\n", "") for rank in range(4)]


def test_the_survivors_of_a_killed_rank_name_it_and_what_it_last_sent_at_once(port):
    with ranks(4, f"tcp://127.0.0.1:{port}", "2") as processes:
        outcome = ends(processes)
    assert outcome.pop(2)[0] == -9
    for code, out, err in outcome:
        assert (code, err) == (0, "")
        assert "lost rank 2" in out and "last heard: ('microbatch', 5); late: False" in out


def test_a_wrong_key_ends_every_process_with_the_remedy(port):
    with ranks(3, f"tcp://127.0.0.1:{port}?wait=6", keys=["one", "one", "another"]) as processes:
        outcome = ends(processes)
    assert [code for code, _, _ in outcome] == [1, 1, 1]
    assert all("callers that held another key or none: rank 2" in err for _, _, err in outcome[:2])
    assert "this rank's key is not that of rank 0" in outcome[2][2]
    assert all("PIPELINED_KEY_FILE" in err for _, _, err in outcome)


@pytest.mark.in_turns(4)
def test_four_ranks_under_torchrun_connect():
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", RING, "tcp://"]
    done = launched(command, 100, env=SURROUNDINGS)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 4: 6" for rank in range(4)]
