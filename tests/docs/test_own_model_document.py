"""The example of docs/your-own-model.md trains on several ranks, and what the page shows can be called."""

import ast
import inspect
import re
import runpy
import sys

import torch
from torch import nn

import pipelined as pp
from tests.launching import ROOT, launched, mpirun

DOCUMENT = (ROOT / "docs" / "your-own-model.md").read_text()


def block(call):
    """The first block of Python in the document that has this call."""
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    return next(one for one in blocks if call in one)


def test_the_program_of_the_readme_learns(capsys):
    (program,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    names = {}
    exec(program.replace("* 50", "* 10"), names)
    losses = names["done"].losses
    assert len(losses) == 10 and losses[-1] < losses[0]
    assert capsys.readouterr().out.splitlines()[-1] == f"9 {losses[-1]}"


def test_the_example_trains_on_two_ranks_and_its_state_loads_into_plain_torch(tmp_path):
    example = (ROOT / "examples" / "mlp.py").read_text()
    example = example.replace("depth=4", "depth=2").replace("randn(100,", "randn(10,")
    program = tmp_path / "mlp.py"
    program.write_text(example)
    command, env = mpirun("mpich", 2, program)
    done = launched(command, timeout=100, env={**env, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step 10: loss" in done.stdout
    assert "the state loads into plain torch" in done.stdout


def test_the_examples_use_only_arguments_of_train():
    shown = block("pp.train(")
    calls = [node for node in ast.walk(ast.parse(shown)) if isinstance(node, ast.Call)]
    (train,) = [call for call in calls if ast.unparse(call.func) == "pp.train"]
    assert {keyword.arg for keyword in train.keywords} <= set(inspect.signature(pp.train).parameters)


def test_the_loop_of_ones_own_runs_as_it_is_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = torch.randn(64, 8)
    names = {
        "pp": pp,
        "layers": [lambda: nn.Linear(8, 8), nn.ReLU] * 4,
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        "loss": nn.functional.mse_loss,
        "batches": [(x, x)] * 10,
        "held_out": [(x[:5], x[:5])],
    }
    exec(block("pp.Trainer(").replace("% 100", "% 10"), names)
    assert names["report"].step == 9
    assert list(names["state"]) == list(nn.Sequential(*[build() for build in names["layers"]]).state_dict())
    assert (tmp_path / "checkpoints" / "step-00000010").is_dir()


def test_the_swarm_that_is_shown_trains():
    names = {}
    exec(block("pp.swarm.local("), names)
    assert len(names["done"].losses) == 5 and names["done"].losses[4] < names["done"].losses[0]


def test_the_example_of_a_swarm_trains_on_one_machine(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["swarm_mlp.py"])
    runpy.run_path(str(ROOT / "examples" / "swarm_mlp.py"))
    assert re.search(r"loss 2\.\d+ at first, 0\.\d+ at step 10", capsys.readouterr().out)


def test_the_program_beside_torchs_own_runs_and_both_have_the_lines_that_the_page_counts(capsys):
    ours, theirs = block("targets)),\n    loss=nn.functional"), block("PipelineStage(")
    counted = [sum(bool(line) for line in text.splitlines()) for text in (ours, theirs)]
    told = re.search(r"with `pipelined`, (\d+) lines .*with torch alone, (\d+) lines", DOCUMENT, re.DOTALL)
    assert counted == list(map(int, told.groups()))
    compile(theirs, "theirs.py", "exec")
    with torch.random.fork_rng(devices=[]):
        exec(ours.replace("microbatches=4", "microbatches=4, steps=2"), {})
    assert round(float(capsys.readouterr().out.split()[0]), 5) == 2.32135


def test_a_traced_module_is_shown_as_it_trains():
    shown = block("pp.trace(model, tokens)")
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)), torch.randn(8, 8)
    names = {"LlamaForCausalLM": lambda config: model, "config": None, "tokens": x, "batches": [(x, x)]}
    exec(shown.replace("depth=4", "depth=2"), {**names, "pp": pp, "torch": torch, "loss": nn.functional.mse_loss})
