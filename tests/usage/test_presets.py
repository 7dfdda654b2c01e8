"""`--preset` with a misspelt name, in every program that has one: the nearest name, exit code 2, and no torch."""

import json
import sys

import pytest

from tests.launching import launched

WITHOUT_TORCH = """
import contextlib, io, json, runpy, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise RuntimeError("torch was imported")
sys.meta_path.insert(0, Refuse())
found = []
for words in json.loads(sys.argv[1]):
    sys.argv, said = words, io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        except SystemExit as end:
            found.append((end.code, said.getvalue()))
print(json.dumps(found))
"""
AT = "--coordinator tcp://127.0.0.1:1"
PROGRAMS = {
    "apps.gpt2": ("gpt2-larg", "gpt2-large"),
    "apps.gpt2 --schedule swarm": ("gpt2-larg", "gpt2-large"),
    "apps.gpt2 --schedule ravnest": ("gpt2-larg", "gpt2-large"),
    "apps.llama": ("Llama3-8B", "llama3-8b"),
    "apps.bert": ("bert-bse", "bert-base"),
    "apps.resnet": ("resnet-34", "resnet34"),
    "apps.vgg": ("vgg-13", "vgg13"),
    "apps.swarm local": ("tinny", "tiny"),
    f"apps.swarm train {AT}": ("tinny", "tiny"),
    "apps.ravnest local": ("digts", "digits"),
    f"apps.ravnest train {AT}": ("digts", "digits"),
    "apps.ravnest plan --pool absent.csv": ("digts", "digits"),
    "pipelined plan --ranks 4": ("gpt2-larg", "gpt2-large"),
    "pipelined plan --ranks 4 --program apps.vgg": ("vgg-13", "vgg13"),
    "pipelined plan --ranks 4 --program apps.resnet": ("resnet-34", "resnet34"),
    "pipelined shard --ranks 4": ("gpt2-larg", "gpt2-large"),
    "pipelined shard --ranks 4 --program apps.vgg": ("vgg-13", "vgg13"),
}


def words_of(program):
    return [*program.split(), "--preset", PROGRAMS[program][0]]


@pytest.fixture(scope="module")
def outcomes():
    """The exit code of each program and what it said, in one process without torch."""
    done = launched([sys.executable, "-c", WITHOUT_TORCH, json.dumps([*map(words_of, PROGRAMS)])], timeout=100)
    assert done.returncode == 0, done.stderr
    return dict(zip(PROGRAMS, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_misspelt_preset_is_refused_with_the_nearest_before_torch_is_imported(program, outcomes):
    (given, nearest), words, (code, text) = PROGRAMS[program], words_of(program), outcomes[program]
    assert code == 2, text
    (said,) = text.splitlines()
    name = f"python -m {' '.join(words[: 2 if words[0] == 'pipelined' else 1])}"
    assert said.startswith(f"{name}: error: no preset is called {given!r}; did you mean {nearest}? choose one of ")
