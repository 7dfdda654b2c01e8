"""How a process ends: with the code its peers were told, in time, and at once where something failed."""

import errno
import subprocess
import sys
import time

import pytest

from pipelined.process import exit
from pipelined.process.exit import Deadline, parse_abort
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
    assert parse_abort(PeerAborted(1, reason)) == meaning


def ended(script):
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, time.monotonic() - start


def test_a_block_that_is_not_left_in_time_ends_the_process_with_its_code():
    script = """
import threading
from pipelined.process import exit
exit.EXIT_S = 0.1
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


CYCLE = """
import atexit, sys
from pipelined.process.exit import end_process
class Examined:
    def __init__(self):
        self.itself = self
    def __del__(self):
        print("examined")
Examined()
atexit.register(print, "ended in order")
"""


@pytest.mark.parametrize(("end", "printed"), [("end_process(2)", []), ("sys.exit(2)", ["examined"])])
def test_at_its_end_a_process_does_not_look_through_all_of_its_objects_for_garbage(end, printed):
    """A second for each process that has loaded torch."""
    code, out, _ = ended(CYCLE + end)
    assert (code, out.splitlines()) == (2, ["ended in order", *printed])


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


def test_a_line_to_a_terminal_that_has_just_closed_is_dropped(monkeypatch):
    """The terminal takes the text, then the end of the line: it may close between the two, before SIGHUP is here."""
    silenced = []

    def closed(*words, flush):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(exit, "print", closed, raising=False)
    monkeypatch.setattr(exit, "silence_stdout", lambda: silenced.append(True))
    exit.print_line("coordinator at tcp://127.0.0.1:1")
    assert silenced == [True]
