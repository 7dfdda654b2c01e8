"""Every flag that takes a path takes one with blanks, umlauts and quotes, and writes or reads that very file."""

from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from apps.common.lm.models.gpt2 import GPT2
from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.gpt2 import __main__ as gpt2
from apps.gpt2.config import GPT2Flags, flag
from apps.swarm import __main__ as swarm
from pipelined.__main__ import main as pipelined_command
from pipelined.api.data.tokens.tokenizer import ByteTokenizer
from pipelined.planner import PlanFile, write_plan
from pipelined.programs.plan import Plan
from pipelined.state.checkpoints import checkpoint
from pipelined.state.checkpoints.checkpoint import open_checkpoint
from pipelined.state.stages.store import DiskStore
from pipelined.state.stages.versions import SavedStage
from pipelined.swarm.stages.torch_stage import TorchStage
from pipelined.swarm.stages.training import Training
from pipelined.training.optimizer import OptimizerConfig
from tests.launching import ROOT

ODD = "Läufe & 'Größen' = 1 %"
SIZES = "--depth 2 --layers 1 --d-model 8 --heads 1 --seq 8 --batch 2 --dropout 0".split()


@pytest.fixture
def place(tmp_path):
    """A folder of an odd name, with a text and a tokenizer in it."""
    folder = tmp_path / ODD
    folder.mkdir()
    (folder / "tëxt mit Blank.txt").write_text((ROOT / "LICENSE").read_text())
    (folder / "tökens 1.json").write_text(ByteTokenizer().to_json())
    (folder / "plän 1.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    return folder


def trained(used, *flags):
    """Run the GPT-2 program with these flags; those that are paths are noted."""
    words = [str(word) for word in flags]
    assert gpt2.main([*words, "--sample", "0"]) == 0
    used |= {word for word, value in pairwise(words) if word.startswith("--") and ODD in value}


def path_flags():
    """Every flag of the GPT-2 program with a path for a value, and the three names that may be one.

    Without --tensorboard, which needs an extra.
    """
    hints = get_type_hints(GPT2Flags)
    kinds = {field.name: {hints[field.name], *get_args(hints[field.name])} for field in fields(GPT2Flags)}
    found = {flag(name) for name, kind in kinds.items() if Path in kind} - {"--tensorboard"}
    return found | {"--resume", "--tokenizer", "--schedule"}


def test_training_reads_and_writes_at_every_path(place):
    used, runs, text = set(), place / "Läufe", ["--data", place / "tëxt mit Blank.txt"]
    text += ["--tokenizer", place / "tökens 1.json"]
    told = ["--metrics", place / "mäße 1.jsonl", "--trace", place / "spür 1.json.gz"]
    own = ["--schedule", place / "plän 1.csv"]
    saving = ["--checkpoint", runs, "--export", place / "modéll 1"]
    trained(used, *SIZES, *text, *told, *saving, "--steps", 2, *own)
    assert len((place / "mäße 1.jsonl").read_text().splitlines()) == 2
    replayed = [*own, "--replay", place / "spür 1.json.gz"]
    (place / "flägs 1.toml").write_text("steps = 2")
    trained(used, *SIZES, *text, "--config", place / "flägs 1.toml", *replayed)
    trained(used, "--resume", checkpoint.latest(runs), *own, "--steps", 3)
    trained(used, "--checkpoint", runs, "--resume", "auto", *own, "--steps", 4)
    assert open_checkpoint(runs).meta.step == 4
    scored = ["--val-data", place / "tëxt mit Blank.txt"]
    trained(used, "--init", place / "modéll 1", *text, *scored, "--seq", 8, "--batch", 2, "--depth", 2, "--steps", 1)
    identity = {**open_checkpoint(runs).meta.identity, "seq": 8}
    plan = PlanFile(
        plan=Plan("gpipe", 2, 1, 1, 2),
        recompute=False,
        model=identity,
        step_s=0.5,
        memory=(1.0,) * 2,
        why="so",
        found={},
    )
    write_plan(place / "plän 2.json", plan)
    trained(used, "--checkpoint", runs, "--resume", "auto", "--steps", 5, "--plan", place / "plän 2.json")
    assert path_flags() == used


def test_planning_and_drawing_write_at_every_path(place, capsys):
    drawn = [f"--{kind}={place / f'bïld 1.{kind}'}" for kind in ("svg", "png", "csv", "trace")]
    assert pipelined_command(["schedule", str(place / "plän 1.csv"), *drawn]) == 0
    assert pipelined_command(["schedule", str(place / "bïld 1.csv"), "--json"]) == 0
    assert pipelined_command(["trace", str(place / "bïld 1.trace"), f"--svg={place / 'spür 1.svg'}"]) == 0
    assert {path.stat().st_size > 0 for path in place.iterdir()} == {True}


def test_a_swarm_saves_and_exports_at_every_path(place, capsys):
    model = GPT2(ModelConfig(1, 8, 1, 256, 8, dropout=0.0))
    stage = TorchStage(Training(model, [range(model.layers)], OptimizerConfig(1e-2, 9, 2), 2, 8, seed=4), 0)
    DiskStore(place / "Stück 1", model.identity()).save(SavedStage(3, 0, 1, "a"), stage.state())
    text = "--data", place / "tëxt mit Blank.txt", "--tokenizer", place / "tökens 1.json"
    words = "export", "--checkpoint", place / "Stück 1", "--to", place / "modéll 1", *text
    assert swarm.main([*map(str, words)]) == 0
    assert (place / "modéll 1" / "model.safetensors").exists()
