"""What a swarm of real processes trained: as its peers gave it, and as they saved it, to the bit."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from apps.common.lm.huggingface.rotary import read_rotary
from pipelined.state.stages.whole_model import find_whole_model
from tests.launching import ROOT

SIZES = "--stages 2 --layers 2 --d-model 32 --heads 2 --seq 16 --batch 4 --microbatch 2 --steps 4 --lease 30"
DATA = ["--data", str(ROOT / "LICENSE")]
WISH = ["--sample", "30", "--prompt", "The"]


def swarm(*words):
    command = [sys.executable, "-m", "apps.swarm", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def digest_in(told: str) -> str:
    (line,) = (line for line in told.splitlines() if "digest of all parameters after 4 steps: " in line)
    return line.split()[-1]


@pytest.mark.in_turns(4)
def test_what_peers_give_at_the_end_is_what_they_saved_and_samples_alike(tmp_path):
    live, later, saved = (tmp_path / name for name in ("live", "later", "saved"))
    saving = ["--checkpoint", str(saved), "--save-every", "2", "--export", str(live)]
    told = swarm("local", "--peers", "2", *SIZES.split(), *DATA, *saving, *WISH)
    again = swarm("export", "--checkpoint", str(saved), "--to", str(later), *DATA, *WISH, "--context", "16")
    one, other = (load_file(place / "model.safetensors") for place in (live, later))
    trained = find_whole_model([saved])
    assert trained.first_save.step == 4 and "all 2 stages, as they saved after 4 steps" in again
    assert digest_in(told) == digest_in(again)
    assert one.keys() == other.keys() == trained.values.keys()
    for name, value in trained.values.items():
        assert torch.equal(one[name], value) and torch.equal(other[name], value)
    assert read_rotary(live) == read_rotary(later)
    sampled = told.partition("sample:\n")[2].strip()
    assert sampled.startswith("The") and sampled == again.partition("sample:\n")[2].strip()
