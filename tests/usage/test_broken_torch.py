"""Where torch cannot be loaded, a program says so in one message, names the remedy, and ends with code 2."""

import os
import sys

import numpy as np
import pytest

from pipelined.state.stages.store import DiskStore
from pipelined.state.stages.versions import SavedStage
from tests.launching import launched

BROKEN = {
    "too little address space": "ImportError('libtorch_cpu.so: failed to map segment from shared object')",
    "a library of CUDA is missing": "OSError('libcudart.so.12: cannot open shared object file')",
    "no memory": "MemoryError()",
    "not installed": "ModuleNotFoundError(\"No module named 'torch'\", name='torch')",
}
"""Why torch is not loaded, and what its import raises."""
SMALL = "--preset tiny --steps 1"
COMMANDS = [
    f"apps.gpt2 {SMALL}",
    "apps.vgg --steps 1",
    f"apps.gpt2 {SMALL} --schedule swarm --stages 2",
    f"apps.ravnest local --nodes 2 {SMALL}",
    f"apps.swarm local --peers 2 --stages 2 {SMALL}",
    "pipelined plan",
]


def without_torch(folder, error, words):
    """Run a command with a torch of which the import raises this."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(f"raise {error}")
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return launched([sys.executable, "-m", *words], timeout=60, env={"PYTHONPATH": path})


def refused(done, program, error):
    """Check that a command ended with one message, of which this program is the author."""
    assert done.returncode == 2, done.stdout + done.stderr
    said = [line for line in done.stderr.splitlines() if "torch cannot be loaded" in line]
    assert said and all(line.startswith(f"python -m {program}") for line in said), done.stderr
    assert error.partition("(")[0] in said[0] and "ulimit -v" in said[0] and "pip install" in said[0]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_program_ends_with_one_message_where_torch_is_not_loaded(tmp_path, command):
    error = BROKEN["too little address space"]
    refused(without_torch(tmp_path, error, command.split()), command.split()[0], error)


@pytest.mark.parametrize("why", BROKEN)
def test_an_export_says_why_torch_is_not_loaded(tmp_path, why):
    DiskStore(tmp_path / "saved", {"model": "toy"}).save(SavedStage(1, 0, 1, "a"), {"a/value": np.ones(2)})
    words = ["apps.ravnest", "export", f"--checkpoint={tmp_path / 'saved'}", f"--to={tmp_path / 'to'}"]
    refused(without_torch(tmp_path, BROKEN[why], words), "apps.ravnest", BROKEN[why])
