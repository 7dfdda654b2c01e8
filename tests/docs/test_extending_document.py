"""Each change of docs/extending.md, applied to a copy of the tree, passes the clauses of every plug-in of its kind."""

import re
import shutil
import subprocess
import sys

import pytest

from tests.launching import ROOT, launched
from transports import codec_names

TEXT = (ROOT / "docs" / "extending.md").read_text()
CHANGES = re.findall(r"```diff\n(.*?)```.*?`(tests/unit/\w+\.py) -k (\w+)`", TEXT, re.DOTALL)
FOLDERS = ("apps", "benchmarks", "collectives", "pipelined", "tests", "transports")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the source tree and its tests."""
    copy = tmp_path_factory.mktemp("tree")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "results"))
    shutil.copy(ROOT / "setup.cfg", copy)
    return copy


def test_there_is_an_example_of_a_schedule_a_codec_and_an_all_reduce():
    kinds = {clauses.removeprefix("tests/unit/test_every_").removesuffix(".py") for _, clauses, _ in CHANGES}
    assert kinds == {"schedule", "codec", "all_reduce"} and TEXT.count("```diff") == len(CHANGES)


@pytest.mark.parametrize(("change", "clauses", "name"), CHANGES, ids=[name for *_, name in CHANGES])
def test_a_plug_in_is_one_new_file_and_one_line_of_a_table(change, clauses, name):
    files = re.findall(r"^\+\+\+ b/(.*)$", change, re.MULTILINE)
    table = change.partition(f"+++ b/{files[1]}\n")[2]
    assert len(files) == 2 and len(re.findall(r"^[+-]", table, re.MULTILINE)) == 1


def test_the_plug_ins_pass_the_clauses_of_their_kinds(tree):
    for change, _, _ in CHANGES:
        subprocess.run(["git", "apply", "-"], cwd=tree, input=change, text=True, check=True)
    chosen = " or ".join([*(name for *_, name in CHANGES), "unknown", "stands_in_its_table"])
    command = [sys.executable, "-m", "pytest", "-v", "-x", "-p", "no:cacheprovider", "--color=no", "-k", chosen]
    files = [clauses for _, clauses, _ in CHANGES]
    done = launched([*command, *files, "tests/unit/test_house.py"], timeout=100, cwd=tree)
    assert done.returncode == 0, done.stdout + done.stderr
    for _, clauses, name in CHANGES:
        assert len(re.findall(rf"^{clauses}::\S*{name}.* PASSED", done.stdout, re.MULTILINE)) > 2, done.stdout


def test_every_codec_is_described():
    table = (ROOT / "docs" / "codecs.md").read_text()
    assert set(codec_names()) == set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
