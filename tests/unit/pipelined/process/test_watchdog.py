"""The watchdog reports the rank that died first, and no rank that has said goodbye."""

import os
import signal
import subprocess
import sys

import pytest

from pipelined.process import watchdog

LAUNCHER = """
import os, signal, subprocess, sys
RANK = '''
import os, sys
from pipelined.process import watchdog
if os.environ["PMI_RANK"] == "0":
    with watchdog.watching([f"rank {rank} (stages {rank})" for rank in range(4)]):
        print("watched", flush=True)
        word = sys.stdin.read(1)
else:
    print("here", flush=True)
    sys.stdin.read(1)
'''
ranks = [
    subprocess.Popen([sys.executable, "-c", RANK], env={**os.environ, "PMI_RANK": str(rank)}, stdin=-1, stdout=-1)
    for rank in (1, 2, 3, 0)
]
for rank in ranks:
    rank.stdout.readline()
for victim in sys.argv[1:]:
    number = int(victim)
    ranks[number - 1].kill()
    ranks[number - 1].wait()
for rank in reversed(ranks):
    rank.communicate(b".")
"""


def told(*victims):
    """What is said where a launcher's ranks are killed in this order, and the others then end by themselves."""
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER, *map(str, victims)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("victims", [(2,), (3, 1), (1, 2, 3, 0), (0,), (0, 1)])
def test_the_first_to_die_is_named_with_its_stages_and_no_other(victims):
    first = victims[0]
    assert (
        told(*victims) == f"rank {first} (stages {first}) ended without an error message; the launcher ends the job\n"
    )


def test_a_rank_that_says_goodbye_is_not_reported():
    assert told() == ""


def test_the_order_of_deaths_is_kept_for_a_watcher_that_wakes_late():
    ranks = [subprocess.Popen(["sleep", "60"]) for _ in range(4)]
    script = "import sys; from pipelined.process import watchdog; print(watchdog.first_dead_rank(eval(sys.argv[1]), 0))"
    command = [sys.executable, "-c", script, str({rank.pid: number for number, rank in enumerate(ranks)})]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout.read(1) == "."
        watcher.send_signal(signal.SIGSTOP)
        for number in (2, 0, 3, 1):
            ranks[number].kill()
            ranks[number].wait()
        watcher.send_signal(signal.SIGCONT)
        assert watcher.stdout.read() == "2\n"


def test_a_process_that_no_launcher_made_a_rank_is_not_watched():
    assert watchdog.rank_of(os.getpid()) is None
