"""A directory of the user's own with a package named `apps`: the programs start there as anywhere else."""

import sys
from configparser import ConfigParser

import pytest

from tests.launching import ROOT, launched

TOLD = ConfigParser(comment_prefixes="#")
TOLD.read(ROOT / "setup.cfg")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A directory with a package `apps` that is not ours, and has a `gpt2` too."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "apps").mkdir()
    (folder / "apps" / "__init__.py").write_text("")
    (folder / "apps" / "gpt2.py").write_text("print('of the user')")
    return folder


def started_in(directory, *words):
    """Run Python there, with the project as after an installation: on the path after the directory itself."""
    return launched([sys.executable, *words], timeout=60, env={"PYTHONPATH": str(ROOT)}, cwd=directory)


def test_the_directory_shadows_the_package(directory):
    """Else the tests below would show nothing."""
    assert started_in(directory, "-m", "apps.gpt2").stdout == "of the user\n"


@pytest.mark.parametrize("program", ["gpt2", "swarm"])
def test_a_program_starts_below_pipelined(program, directory):
    done = started_in(directory, "-m", f"pipelined.apps.{program}", "--version")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("pipelined ")


def test_the_planner_finds_its_program(directory):
    flags = "plan --ranks 2 --costs flops=1e10 --json --layers 2 --d-model 16"
    done = started_in(directory, "-m", "pipelined", *flags.split())
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", TOLD["options.entry_points"]["console_scripts"].strip().splitlines())
def test_an_installed_command_starts(line, directory):
    """As `pip` writes it. The current directory is on the path: some set PYTHONPATH to it."""
    module, _, function = line.partition("=")[2].strip().partition(":")
    script = f"import sys; sys.argv[1:] = ['--version']; from {module} import {function}; sys.exit({function}())"
    done = started_in(directory, "-c", script)
    assert done.returncode == 0 and done.stdout.startswith("pipelined "), done.stderr


def test_another_apps_that_is_imported_already_is_named(directory):
    done = started_in(directory, "-c", "import apps, pipelined.apps")
    assert done.returncode == 1
    assert f"another package named apps is imported already ({directory}/apps/__init__.py, " in done.stderr
