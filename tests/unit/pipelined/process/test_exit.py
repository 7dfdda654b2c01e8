"""How a process ends: with the code its peers were told, in time, and at once where something failed."""

import subprocess
import sys
import time

import pytest

from pipelined.process.exit import Deadline, heard
from transports import PeerAborted


@pytest.mark.parametrize(
    ("reason", "meaning"),
    [
        ("exit code 130: rank 2 was interrupted", (130, "rank 2 was interrupted")),
        ("exit code 2: a: b\nc", (2, "a: b\nc")),
        ("the disk is full", (1, "the disk is full")),
        ("exit code none: odd", (1, "exit code none: odd")),
    ],
)
def test_a_peer_s_last_words_tell_code_and_reason(reason, meaning):
    assert heard(PeerAborted(1, reason)) == meaning


def ended(script):
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, time.monotonic() - start


def test_a_block_that_is_not_left_in_time_ends_the_process_with_its_code():
    script = """
import threading
from pipelined.process import exit
exit.LAST_S = 0.1
with exit.Deadline() as deadline:
    deadline.start(130)
    deadline.start(1)
    threading.Event().wait()
"""
    assert ended(script)[0] == 130


def test_a_block_that_is_left_in_time_ends_nothing():
    with Deadline() as deadline:
        deadline.start(1)
        timer = deadline._timer
    timer.join()
    assert timer.finished.is_set()


@pytest.mark.parametrize("code", [1, 130])
def test_a_failed_process_does_not_wait_for_its_threads(code):
    script = f"""
import threading
from pipelined.process.exit import end_process
threading.Thread(target=threading.Event().wait).start()
print("told")
end_process({code})
"""
    assert ended(script)[:2] == (code, "told\n")


def test_a_rank_that_waits_for_others_ends_with_its_code_where_the_first_to_go_ends_all():
    script = """
import os, signal, threading
from pipelined.process.exit import part_in_order
from pipelined.process.launch import Launch
threading.Timer({seconds}, os.kill, (os.getpid(), signal.SIGTERM)).start()
part_in_order(Launch("tcp://", 1, 2, "torchrun", 1, 2, hasty={hasty}))
os._exit(0)
"""
    assert ended(script.format(seconds=0.2, hasty=True))[0] == 2, "the launcher need not wait, and the code stays"
    assert ended(script.format(seconds=60, hasty=False))[0] == 0
