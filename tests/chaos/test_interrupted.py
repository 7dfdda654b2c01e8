"""Interrupted or abandoned, no launcher's ranks outlive it; mpirun's are in tests/launch."""

import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from pipelined.state.checkpoints import checkpoint
from tests.launching import ROOT, started

JOB = "--depth 2 --steps 1000000 --layers 2 --d-model 32 --heads 2 --seq 16 --batch 8 --sample 0".split()
RUN = ["-m", "apps.gpt2", *JOB, "--data", ROOT / "LICENSE"]
LAUNCHERS = {
    "alone": [sys.executable, *RUN],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 2, *RUN],
}


def end(launcher, place, act):
    """Train until after a step something happens to the launcher; its exit code and all that was said."""
    with started([*LAUNCHERS[launcher], "--checkpoint", place]) as process:
        said = []
        for line in process.stdout:
            said.append(line)
            if "step     1/" in line:
                act(process)
                break
        said.append(process.communicate(timeout=60)[0])
    return process.returncode, "".join(said)


def left(word, seconds):
    """The processes that name this word and do not end within these seconds."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError), open(os.pidfd_open(int(entry.name))) as ended:
            if word in (entry / "cmdline").read_text() and not select.select([ended], [], [], seconds)[0]:
                found.append(entry.name)
    return found


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(("launcher", "code"), [("alone", 130), ("torchrun", 1)])
def test_ctrl_c_reaches_every_rank_and_leaves_none(launcher, code, tmp_path):
    ended, said = end(launcher, tmp_path, lambda process: os.killpg(process.pid, signal.SIGINT))
    assert ended == code, said
    assert left(str(tmp_path), 40) == []
    assert checkpoint.latest(tmp_path) is None
    assert "pipelined/" not in said, "no traceback of ours"


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGUSR1, marks=pytest.mark.full)])
def test_ranks_save_and_end_once_their_torchrun_is_gone(number, tmp_path):
    ended, said = end("torchrun", tmp_path, lambda process: process.send_signal(number))
    assert ended == -number
    assert left(str(tmp_path), 40) == []
    assert f"saved to {checkpoint.latest(tmp_path)}" in said
