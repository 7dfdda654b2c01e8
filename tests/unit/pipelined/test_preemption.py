"""Being asked to stop: one signal asks, a second SIGTERM insists, and a launcher that is gone has asked."""

import os
import signal
import subprocess
import sys

import pytest

from pipelined.preemption import StopRequest

ASKED = """
import os, signal, sys
from pipelined.preemption import StopRequest

stop = StopRequest()
stop.listen()
for sent, name in enumerate(sys.argv[1:]):
    assert stop.requested == (sent > 0)
    os.kill(os.getpid(), signal.Signals[name])
assert stop.requested
"""


@pytest.mark.parametrize(
    ("signals", "code"),
    [
        (["SIGTERM"], 0),
        (["SIGUSR1"], 0),
        (["SIGUSR1", "SIGUSR1"], 0),
        (["SIGTERM", "SIGTERM"], 128 + signal.SIGTERM),
        (["SIGUSR1", "SIGTERM"], 128 + signal.SIGTERM),
    ],
)
def test_the_first_signal_asks_and_a_later_sigterm_insists(signals, code):
    assert subprocess.run([sys.executable, "-c", ASKED, *signals]).returncode == code


def test_a_launcher_that_is_gone_has_asked():
    assert not StopRequest().requested
    assert not StopRequest(os.getppid()).requested
    assert StopRequest(os.getppid() + 1).requested
