"""A run that was stopped or killed goes on as if nothing had happened."""

import json
import shutil
import signal
import sys

import pytest

from apps.gpt2 import __main__ as gpt2
from pipelined.state.checkpoints import checkpoint
from pipelined.state.checkpoints.checkpoint import open_checkpoint
from tests.launching import ROOT, launched, mpirun, started

STEPS = 40
SIZES = "--layers 2 --d-model 32 --heads 2 --seq 16 --batch 8 --microbatch 2 --dropout 0.1 --dtype float64"
JOB = ["--steps", STEPS, *SIZES.split(), "--sample", 0, "--data", ROOT / "LICENSE"]
RUN = ["-m", "apps.gpt2", *JOB]
STRUCK = [sys.executable, "-m", "tests.chaos.struck_gpt2"]
ALONE = [sys.executable, *RUN, "--depth", 2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 2]


def train(command, metrics, *flags):
    """Run to the end in a process of its own; losses and norms by step, and the validation's where there is one."""
    done = launched([*command, "--metrics", metrics, *flags], timeout=100)
    assert done.returncode == 0, done.stderr
    return measured(metrics)


def train_here(metrics, *flags):
    """Run to the end in this process; as `train`."""
    assert gpt2.main([str(word) for word in (*JOB, "--metrics", metrics, *flags)]) == 0
    return measured(metrics)


def measured(metrics):
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return {row["step"]: (row["loss"], row["grad_norm"], row.get("eval_loss", 0.0)) for row in rows}


def end_after(command, word, number, *flags, env=None):
    """Run until it has said a word, send it a signal, and wait; its exit code and what it said."""
    with started([*command, *flags], env) as process:
        said = []
        for line in process.stdout:
            said.append(line)
            if word in line:
                process.send_signal(number)
                break
        said.append(process.communicate(timeout=60)[0])
    return process.returncode, "".join(said)


def struck(number, where, call, *flags):
    """Run alone until the call of a function at which it sends itself a signal; its exit code and what it said."""
    with started([*STRUCK, number, where, call, *ALONE[3:], *flags]) as process:
        said = process.communicate(timeout=100)[0]
    return process.returncode, said


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return train_here(tmp_path_factory.mktemp("uninterrupted") / "metrics", "--depth", 2)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder of a run that was asked to stop in its third step: what it saved, and its metrics."""
    folder = tmp_path_factory.mktemp("stopped")
    flags = ["--checkpoint", folder / "saved", "--metrics", folder / "metrics"]
    code, said = struck("SIGUSR1", "forward", 2 * 2 * 4 + 1, *flags)  # 2 stages of 4 microbatches a step
    assert code == 0, said
    saved = open_checkpoint(folder / "saved")
    assert f"stopped on request after {saved.meta.step} steps; saved to {saved.path}" in said
    assert f"data: {ROOT / 'LICENSE'}, digest " in said and "; device: cpu" in said
    assert saved.meta.step == 3
    return folder


@pytest.fixture
def saved(stopped, tmp_path):
    """A copy of what the stopped run left."""
    return shutil.copytree(stopped, tmp_path / "stopped")


@pytest.mark.in_turns(4)
def test_a_stopped_run_resumes_bit_for_bit(uninterrupted, saved):
    arranged = [sys.executable, "-m", "apps.gpt2", "--depth", 2, "--microbatch", 2]  # all else is in the checkpoint
    whole = train(arranged, saved / "metrics", "--checkpoint", saved / "saved", "--resume", "auto", "--sample", 0)
    assert whole == uninterrupted
    assert list(whole) == list(range(STEPS))


@pytest.mark.parametrize(
    "shape",
    [
        "--depth 4 --schedule gpipe",
        pytest.param("--depth 1 --width 2", marks=pytest.mark.full),
        pytest.param("--depth 2 --width 2 --schedule one_f_one_b --recompute", marks=pytest.mark.full),
    ],
)
def test_a_stopped_run_resumes_at_another_shape(shape, uninterrupted, saved):
    flags = ["--resume", checkpoint.latest(saved / "saved"), *shape.split()]
    rest = train_here(saved / "rest", *flags)
    assert list(rest) == list(range(open_checkpoint(saved / "saved").meta.step, STEPS))
    for number, row in rest.items():
        assert row == pytest.approx(uninterrupted[number], rel=1e-6)


@pytest.mark.in_turns(4)
def test_a_run_killed_while_it_saves_resumes_from_the_save_before(uninterrupted, tmp_path):
    flags = ["--checkpoint", tmp_path / "saved", "--save-every", 1]
    code, said = struck("SIGKILL", "commit", 10, *flags)
    assert code == -signal.SIGKILL, said
    assert open_checkpoint(tmp_path / "saved").meta.step == 9
    assert list((tmp_path / "saved").glob("*.part")), "the tenth was being saved"
    assert train(ALONE, tmp_path / "rest", *flags[:2], "--resume", "auto").items() <= uninterrupted.items()


@pytest.mark.full
def test_a_run_resumes_over_tcp_and_then_in_one_process(uninterrupted, tmp_path):
    flags = ["--depth", 2, "--checkpoint", tmp_path / "saved", "--metrics", tmp_path / "metrics", "--resume", "auto"]
    mpi, env = mpirun("mpich", 2, *RUN)
    for command, variables, ended in ((mpi, env, 0), ([*TORCHRUN, *RUN], None, 1)):
        code, said = end_after(command, "step ", signal.SIGTERM, *flags, env=variables)
        assert code == ended and "; saved to " in said, said
    assert checkpoint.latest(tmp_path / "saved").name < f"step-{STEPS:08}"
    whole = train([sys.executable, *RUN], tmp_path / "metrics", *flags)
    assert list(whole) == list(range(STEPS))
    for number, row in whole.items():
        assert row == pytest.approx(uninterrupted[number], rel=1e-10)
