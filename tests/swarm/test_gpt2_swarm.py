"""`apps.gpt2 --schedule swarm` beside `--schedule gpipe` with the same flags: the same losses, norms and weights."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests.launching import ROOT, launched, mpirun, started

MODEL = "--preset chimera --layers 2 --d-model 16 --heads 2 --vocab 256 --seq 16 --dropout 0.1"
DATA = "--data LICENSE --batch 8 --microbatch 2 --warmup 2 --sample 0"
RESUME = "--resume auto"
JOBS = {
    "gpipe": f"--schedule gpipe --depth 2 --steps 4 {MODEL} {DATA} --eval-every 2 --export ~/gpipe",
    "swarm": f"--schedule swarm --depth 2 --steps 4 {MODEL} {DATA} --eval-every 2 --export ~/swarm --digest 1",
    "begun gpipe": f"--schedule gpipe --depth 2 --steps 3 {MODEL} {DATA} --checkpoint ~/pipelines",
    "begun swarm": f"--schedule swarm --depth 2 --width 1 --steps 3 {MODEL} {DATA} --checkpoint ~/saved --save-every 2",
    "resumed gpipe": f"--schedule gpipe --depth 2 --steps 5 {MODEL} {DATA} --checkpoint ~/pipelines {RESUME}",
    "resumed swarm": f"--schedule swarm --depth 3 --width 1 --steps 5 {MODEL} {DATA} --checkpoint ~/saved {RESUME}",
    "given gpipe": f"--schedule gpipe --depth 2 --steps 2 --init ~/gpipe --seq 16 {DATA}",
    "given swarm": f"--schedule swarm --depth 2 --width 1 --steps 2 --init ~/gpipe --seq 16 {DATA} --export ~/given",
}
"""Command lines, `~` standing for a folder of their own; they run one after another in one process."""
ONE_AFTER_ANOTHER = """
import json, sys
from apps.gpt2 import __main__ as gpt2
code = max(gpt2.main(flags) for flags in json.loads(sys.argv[1]))
print("imported:", *sorted(sys.modules))
sys.exit(code)
"""


def words(name: str, folder: Path) -> list[str]:
    return [*JOBS[name].replace("~", str(folder)).split(), "--metrics", str(folder / f"{name}.json")]


def rows(folder: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (folder / f"{name}.json").read_text().splitlines()]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The folder of the jobs, and what they said."""
    folder = tmp_path_factory.mktemp("jobs")
    command = [sys.executable, "-c", ONE_AFTER_ANOTHER, json.dumps([words(name, folder) for name in JOBS])]
    done = launched(command, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


@pytest.fixture(scope="module")
def folder(ran):
    return ran[0]


def assert_same_rows(mine: list[dict], theirs: list[dict]):
    """Every number that follows from the training alone."""
    assert [row["step"] for row in mine] == [row["step"] for row in theirs]
    for here, there in zip(mine, theirs, strict=True):
        assert there.keys() - here.keys() <= {"bytes", "planned_bytes"}, "a swarm's peers count their own"
        assert here.keys() <= there.keys()
        for key in here.keys() & {"loss", "grad_norm", "lr", "tokens", "eval_loss"}:
            assert here[key] == pytest.approx(there[key], rel=1e-5), (key, here["step"])
        assert 0.0 <= here["idle_fraction"] <= 1.0


def assert_same_weights(mine: Path, theirs: Path):
    here, there = (load_file(directory / "model.safetensors") for directory in (mine, theirs))
    assert here.keys() == there.keys()
    for name, tensor in here.items():
        assert tensor == pytest.approx(there[name], abs=2e-5), name


@pytest.mark.timeout(120)
def test_a_swarm_trains_what_a_pipeline_trains(folder):
    assert_same_rows(rows(folder, "swarm"), rows(folder, "gpipe"))
    assert_same_weights(folder / "swarm", folder / "gpipe")
    assert [row["step"] for row in rows(folder, "swarm") if "eval_loss" in row] == [1, 3]
    assert json.loads((folder / "swarm" / "config.json").read_text())["tie_word_embeddings"] is False


@pytest.mark.timeout(120)
def test_a_digest_is_printed_at_the_end(ran):
    (line,) = (line for line in ran[1].splitlines() if line.startswith("digest of all parameters"))
    assert re.fullmatch("digest of all parameters after 4 steps: [0-9a-f]{32}", line)


@pytest.mark.timeout(120)
def test_a_run_resumes_with_another_number_of_stages(folder):
    assert_same_rows(rows(folder, "begun swarm"), rows(folder, "begun gpipe"))
    assert [row["step"] for row in rows(folder, "resumed swarm")] == [3, 4]
    assert_same_rows(rows(folder, "resumed swarm"), rows(folder, "resumed gpipe"))


@pytest.mark.timeout(120)
def test_it_begins_with_given_weights(folder):
    assert_same_rows(rows(folder, "given swarm"), rows(folder, "given gpipe"))


@pytest.mark.timeout(120)
def test_no_job_loads_torch_s_compiler(ran):
    """It takes as long to import as all of torch, on every rank; its symbolic shapes alone take half of that."""
    imported = ran[1].partition("imported: ")[2].split()
    assert "torch" in imported and not {"torch._dynamo", "sympy"}.intersection(imported)


@pytest.mark.full
@pytest.mark.timeout(180)
def test_ranks_of_mpirun_are_a_swarm_that_a_process_joins_and_that_ends_on_request(tmp_path):
    """Three ranks train for ever; a fourth peer joins from outside; then all are asked to stop, and save."""
    flags = f"--schedule swarm --stages 2 --steps 100000 {MODEL} {DATA} --checkpoint {tmp_path / 'saved'}".split()
    command, env = mpirun("mpich", 3, "-u", "-m", "apps.gpt2", *flags, "--metrics", tmp_path / "metrics")
    with started(command, env) as ranks:
        said = until(ranks, "others join by")
        join = said[-1].split(": ")[1].split()
        serve = [sys.executable, "-u", *join[1:], "--name", "outsider"]
        with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True, cwd=ROOT) as outsider:
            try:
                until(outsider, "outsider: stage")
                until(ranks, "step ")
                os.kill(ranks.pid, signal.SIGTERM)
                said += until(ranks, "stopped on request")
                assert ranks.wait(timeout=30) == 0
            finally:
                outsider.kill()
    assert "saved to" in said[-1] and str(tmp_path / "saved") in said[-1]
    step = int(said[-1].split(" steps;")[0].split("after ")[1])
    assert sorted(path.name for path in (tmp_path / "saved").glob("stage-*/step-*")) == [f"step-{step:08}"] * 2


def until(process, wanted):
    """Lines that a process prints, up to one that holds this."""
    lines = []
    while not lines or wanted not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1], f"it ended before it said {wanted!r}: {lines}"
    return lines
