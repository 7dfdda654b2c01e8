"""Being asked to stop: one signal asks, a later SIGTERM insists; a launcher or a terminal that is gone has asked."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from pipelined.process.launch import AGENT
from pipelined.process.stop_request import POLL_S, StopRequest, stop_signals, until_stop_request
from tests.terminal import closed_over
from tests.virtual_time import virtual_seconds

ASKED = """
import os, signal, sys
from pipelined.process import stop_request

stop_request.AGAIN_S = float(sys.argv[1])
stop = stop_request.StopRequest()
stop.listen()
for sent, name in enumerate(sys.argv[2:]):
    assert stop.requested == (sent > 0)
    os.kill(os.getpid(), signal.Signals[name])
assert stop.requested
"""


IN_A_LOOP = """
import asyncio, os, signal, sys
from pipelined.process import stop_request

async def main():
    acts, sent = [], asyncio.Event()
    stop_request.on_stop_request(lambda: acts.append(None))
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, sent.set)
    for name in [*sys.argv[2:], "SIGUSR2"]:
        os.kill(os.getpid(), signal.Signals[name])
    await sent.wait()
    assert len(acts) == 1, acts

stop_request.AGAIN_S = float(sys.argv[1])
asyncio.run(main())
"""


AT_ONCE = 128 + signal.SIGTERM


@pytest.mark.parametrize("receiver", [ASKED, IN_A_LOOP], ids=["anywhere", "in a loop"])
@pytest.mark.parametrize(
    ("again", "signals", "code"),
    [
        (0, ["SIGTERM"], 0),
        (0, ["SIGUSR1"], 0),
        (0, ["SIGUSR1", "SIGUSR1"], 0),
        (0, ["SIGHUP", "SIGHUP"], 0),
        (0, ["SIGTERM", "SIGUSR1"], 0),
        (0, ["SIGTERM", "SIGTERM"], AT_ONCE),
        (0, ["SIGUSR1", "SIGTERM"], AT_ONCE),
        (0, ["SIGHUP", "SIGTERM"], AT_ONCE),
        (60, ["SIGTERM", "SIGTERM"], 0),
        (60, ["SIGUSR1", "SIGTERM", "SIGTERM"], 0),
    ],
)
def test_the_first_signal_asks_and_a_later_sigterm_insists(receiver, again, signals, code):
    """A later one, not the second: `timeout` sends one to its child and one to the group."""
    ended = subprocess.run([sys.executable, "-c", receiver, str(again), *signals], stderr=subprocess.PIPE, timeout=30)
    assert ended.returncode == code
    repeats = signals[1:].count("SIGTERM") if again else 0
    assert ended.stderr.decode().count("count once; a later SIGTERM ends this process") == repeats, ended.stderr


async def test_after_the_work_a_stop_request_is_an_ordinary_signal_again():
    numbers = stop_signals()
    await until_stop_request(asyncio.sleep(0))
    assert {signal.getsignal(number) for number in numbers} == {signal.SIG_DFL}


IN_A_TERMINAL = """
import signal
from pipelined.process.stop_request import StopRequest

stop = StopRequest()
stop.listen()
print("listens", flush=True)
while not stop.requested:
    signal.pause()
print("nobody reads this", flush=True)
"""


def test_a_closed_terminal_is_a_stop_request_and_gets_no_more_output():
    assert closed_over(sys.executable, "-c", IN_A_TERMINAL) == 0


def test_a_hangup_does_not_stop_a_process_that_was_started_to_ignore_it():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert signal.SIGHUP not in stop_signals()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_dead_launcher_is_a_stop_request():
    assert not StopRequest().requested
    assert not StopRequest(os.getppid()).requested
    assert StopRequest(os.getppid() + 1).requested


def test_only_a_rank_under_torchruns_agent_stops_when_its_parent_ends(monkeypatch):
    for name, requested in ((AGENT, True), ("SLURM_JOB_ID", False)):
        with monkeypatch.context() as patch:
            patch.delenv(AGENT, raising=False)
            patch.setenv(name, "1")
            stop = StopRequest.of_rank()
            patch.setattr(os, "getppid", lambda: -1)
            assert stop.requested is requested


@pytest.mark.virtual
async def test_a_request_sets_an_event():
    stop, event = StopRequest(), asyncio.Event()
    setting = asyncio.ensure_future(stop.set(event))
    await virtual_seconds(1.5 * POLL_S)
    assert not event.is_set()
    stop._receive(signal.SIGUSR1, None)
    await setting
    assert event.is_set()


@pytest.mark.virtual
async def test_wait_returns_at_the_check_after_the_request():
    loop, stop = asyncio.get_running_loop(), StopRequest()
    waiting = asyncio.ensure_future(stop.wait())
    await virtual_seconds(3.5 * POLL_S)
    assert not waiting.done()
    stop._receive(signal.SIGUSR1, None)
    await waiting
    assert loop.time() == pytest.approx(4 * POLL_S)
