"""A refusal before a transport is open: ranks of a node wait for one another, and the lowest that refuses prints."""

import socket
import subprocess
import sys
from contextlib import suppress
from threading import Thread

import pytest

from pipelined.errors import UsageError
from pipelined.process import refusal
from pipelined.process.launch import Launch
from pipelined.process.refusal import refuse, wait_for_refusals

TERMINATED = """
import os, signal, threading
from pipelined.errors import UsageError
from pipelined.process.launch import Launch
from pipelined.process.refusal import refuse
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
refuse(UsageError("no"), Launch("tcp://", 1, 2, "torchrun", 1, 2, kills_on_first_exit=True))
"""


def test_a_rank_that_waits_for_others_ends_with_its_code_where_the_first_to_go_ends_all():
    done = subprocess.run([sys.executable, "-c", TERMINATED], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, ""), "the launcher need not wait, and the code stays"


def test_a_single_rank_waits_for_no_other():
    assert wait_for_refusals(0, 1, 60.0) == {0}


@pytest.mark.parametrize("ranks", [2, 5])
def test_processes_of_one_parent_all_go_when_all_are_there(ranks):
    waiting = f"print(wait_for_refusals(int(sys.argv[1]), {ranks}, 60.0))"
    script = f"import sys; from pipelined.process.refusal import wait_for_refusals; {waiting}"
    processes = [
        subprocess.Popen([sys.executable, "-c", script, str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    assert [process.communicate(timeout=60)[0].strip() for process in processes] == [str({*range(ranks)})] * ranks


def test_a_rank_that_does_not_come_is_given_up():
    assert wait_for_refusals(0, 2, 0.01) == {0}


def test_a_datagram_with_a_number_that_is_no_ranks_counts_as_no_rank():
    found = []
    waiting = Thread(target=lambda: found.append(wait_for_refusals(0, 2, 0.2)))
    waiting.start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as foreign:
        while waiting.is_alive():
            with suppress(OSError):
                foreign.sendto((7).to_bytes(8, "big"), refusal._socket_name(0))
                break
    waiting.join()
    assert found == [{0}]


def test_one_of_several_that_do_not_come_is_given_up_by_all():
    found = []
    ranks = [Thread(target=lambda rank=rank: found.append(wait_for_refusals(rank, 4, 0.2))) for rank in (0, 1, 3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert found == [{0, 1, 3}] * 3


def test_a_rank_with_a_taken_name_waits_its_time_and_goes():
    first = Thread(target=wait_for_refusals, args=(0, 2, 0.2))
    first.start()
    assert wait_for_refusals(0, 2, 0.01) == {0}
    first.join()


@pytest.fixture
def steps(monkeypatch):
    """What a refusing rank does, in order, without its sleeps; ranks 1 and 3 of a node refuse."""
    done = []
    monkeypatch.setattr(refusal, "wait_for_refusals", lambda rank, ranks, patience: {1, 3})
    monkeypatch.setattr(refusal, "_handle_sigterm", lambda handler: None)
    monkeypatch.setattr(refusal, "end_job", lambda code, environ: done.append(code))
    monkeypatch.setattr(refusal, "print_to_stderr", done.append)
    monkeypatch.setattr(refusal.time, "sleep", done.append)
    return done


def mpirun(rank, world_size, local_rank, local_size):
    return Launch("mpi://", rank, world_size, "mpirun", local_rank, local_size, hydra=True)


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        (mpirun(1, 4, 1, 4), ["error: no", 2]),
        (mpirun(3, 4, 3, 4), [9]),
        (mpirun(5, 8, 1, 4), [3 * (1 + 5 / 8), "error: no", 2]),
        (mpirun(1, 2, 1, 2), []),
    ],
    ids=["the lowest ends all", "another waits to be ended", "rank 0 is on another node, and first", "all refuse"],
)
def test_ranks_that_refuse_alone_print_once_and_end_the_job(launch, expected, steps):
    assert refuse(UsageError("no"), launch) == 2
    assert steps == expected


def test_rank_0_prints_before_it_waits(steps, monkeypatch):
    def waits(rank, ranks, patience):
        steps.append("waits")
        return {0}

    monkeypatch.setattr(refusal, "wait_for_refusals", waits)
    assert refuse(UsageError("no"), mpirun(0, 4, 0, 2)) == 2
    assert steps == ["error: no", "waits", 2]
