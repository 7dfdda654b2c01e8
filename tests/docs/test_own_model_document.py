"""The example of docs/your-own-model.md trains on several ranks, and what the page shows can be called."""

import ast
import inspect
import re

import pipelined as pp
from tests.launching import ROOT, launched, mpirun

DOCUMENT = (ROOT / "docs" / "your-own-model.md").read_text()


def test_the_example_trains_on_two_ranks_and_its_state_loads_into_plain_torch(tmp_path):
    example = (ROOT / "examples" / "mlp.py").read_text().replace("depth=4", "depth=2").replace("steps=100", "steps=10")
    program = tmp_path / "mlp.py"
    program.write_text(example)
    command, env = mpirun("mpich", 2, program)
    done = launched(command, timeout=100, env={**env, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step 10: loss" in done.stdout
    assert "the state loads into plain torch" in done.stdout


def test_what_is_shown_has_only_arguments_that_train_takes():
    (shown,) = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    calls = [node for node in ast.walk(ast.parse(shown)) if isinstance(node, ast.Call)]
    (train,) = [call for call in calls if ast.unparse(call.func) == "pp.train"]
    assert {keyword.arg for keyword in train.keywords} <= set(inspect.signature(pp.train).parameters)
