"""SIGTERM in each phase of a run: it ends with the documented code, saved what is documented, and leaves no part."""

import os
import signal
import socket
import sys

import pytest

from apps.common.lm.huggingface import write as _huggingface
from apps.gpt2 import __main__ as gpt2
from apps.gpt2 import train as _training
from pipelined.state.checkpoints import checkpoint
from pipelined.state.checkpoints.checkpoint import open_checkpoint
from pipelined.training.stages.stage import Stage
from tests.launching import ROOT, started

STEPS = 6
SIZES = "--depth 2 --layers 1 --d-model 8 --heads 1 --seq 8 --batch 2 --sample 0".split()
RUN = [*SIZES, "--data", str(ROOT / "LICENSE"), "--steps", str(STEPS)]
PHASES = {
    "first forward": (Stage, "forward", 1),
    "save": (checkpoint, "write_shard", 2),
    "commit": (checkpoint, "commit", 2),
    "evaluation": (_training, "evaluate", 2),
    "last evaluation": (_training, "evaluate", None),
    "last save": (checkpoint, "write_shard", None),
    "export": (_huggingface, "export", None),
}
"""By phase what a run calls in it, and the step after which it is to end: None: with the last, as if not asked."""


@pytest.fixture
def handlers():
    """The handlers of this process come back after the test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def terminate_in(monkeypatch, owner, name):
    """Let this process be sent SIGTERM at the first call of a function; a list that is true once that was."""
    plain, sent = getattr(owner, name), []

    def struck(*args, **kwargs):
        if not sent:
            sent.append(True)
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(*args, **kwargs)

    monkeypatch.setattr(owner, name, struck)
    return sent


@pytest.mark.parametrize("phase", PHASES)
def test_a_run_that_gets_a_signal_saves_a_complete_step_and_exits_with_0(phase, tmp_path, monkeypatch, capfd, handlers):
    owner, name, last = PHASES[phase]
    every = [] if last is None else ["--save-every", "1", "--eval-every", "1"]
    sent = terminate_in(monkeypatch, owner, name)
    flags = [*RUN, *every, "--checkpoint", str(tmp_path / "saved"), "--export", str(tmp_path / "model")]
    assert gpt2.main(flags) == 0 and sent
    saved = open_checkpoint(tmp_path / "saved")
    saved.load(saved.names)
    assert saved.meta.step == (last or STEPS)
    told = f"stopped on request after {last} steps; saved to {saved.path}"
    assert (told in " ".join(capfd.readouterr().out.split())) == (last is not None)
    assert (tmp_path / "model" / "config.json").exists() == (last is None), "only a run that ends is exported"
    assert not list((tmp_path / "saved").glob("*.part"))


def test_a_rank_that_waits_for_others_ends_at_once_and_saves_nothing(tmp_path):
    """Nothing has been trained yet, and the others may never come."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with started([sys.executable, "-m", "apps.gpt2", *RUN, "--checkpoint", tmp_path / "saved"], place) as process:
        while process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                continue
        process.terminate()
        process.wait(timeout=30)
    assert process.returncode == -signal.SIGTERM
    assert not (tmp_path / "saved").exists()
