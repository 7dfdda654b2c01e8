"""`--preset` with a misspelt name, in every program that has one: the nearest name, exit code 2, and no torch."""

import sys

import pytest

from tests.launching import launched

WITHOUT_TORCH = """
import runpy, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise RuntimeError("torch was imported")
sys.meta_path.insert(0, Refuse())
sys.argv[0] = sys.argv.pop(1)
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
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


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_misspelt_preset_is_refused_with_the_nearest_before_torch_is_imported(program):
    given, nearest = PROGRAMS[program]
    words = [*program.split(), "--preset", given]
    done = launched([sys.executable, "-c", WITHOUT_TORCH, *words], timeout=60)
    assert done.returncode == 2, done.stderr
    (said,) = done.stderr.splitlines()
    name = f"python -m {' '.join(words[: 2 if words[0] == 'pipelined' else 1])}"
    assert said.startswith(f"{name}: error: no preset is called {given!r}; did you mean {nearest}? choose one of ")
