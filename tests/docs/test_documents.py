"""What README and docs show is true: their commands are understood, their links lead somewhere, the first two run."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launching import ROOT, launched, mpirun

AROUND = [ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "docs" / "deploy" / "README.md"]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *AROUND]


def blocks(document):
    """The shell blocks of a document, each as text."""
    return re.findall(r"^```sh\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)


def commands_with(text):
    """Every shown command line, or cell of a table, with this text in it."""
    lines = [line for document in DOCUMENTS for block in blocks(document) for line in block.splitlines()]
    cells = [cell for document in DOCUMENTS for cell in re.findall(r"`([^`\n]+)`", document.read_text())]
    return sorted({found.strip() for found in (*lines, *cells) if text in found})


def test_the_readme_begins_with_the_job_and_then_the_tests():
    job, tests, *_ = blocks(ROOT / "README.md")
    assert job.rstrip().endswith("mpirun -n 4 python -m apps.gpt2")
    assert tests.rstrip().endswith("python -m pytest")
    assert job.count("constraints.txt") == 1 and tests.count("constraints.txt") == 1


@pytest.mark.timeout(200)
def test_the_first_command_of_the_readme_trains():
    words = blocks(ROOT / "README.md")[0].splitlines()[-1].split()
    command, env = mpirun("mpich", words[2], *words[4:], "--steps", 2, "--sample", 0, "--data", ROOT / "LICENSE")
    done = launched(command, timeout=180, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "validation loss" in done.stdout


JOBS = [command for command in commands_with("-m apps.gpt2") if "apps.gpt2 generate" not in command]


def flags_of(command):
    """What a shown job is given."""
    flags = command.partition("-m apps.gpt2")[2].partition("#")[0].removesuffix(" &")
    return [flag.rstrip(",.") for flag in shlex.split(flags)]


@pytest.fixture(scope="module")
def outcomes():
    """What each shown job comes to that only shows its configuration; one process answers for all."""
    lines = json.dumps([[*flags_of(command), "--print-config"] for command in JOBS])
    told = subprocess.run(
        [sys.executable, "-m", "tests.usage.refused"], input=lines, capture_output=True, text=True, cwd=ROOT, check=True
    )
    return dict(zip(JOBS, json.loads(told.stdout), strict=True))


@pytest.mark.parametrize("command", JOBS)
def test_every_shown_job_is_understood(command, outcomes):
    assert outcomes[command]["code"] == 0, outcomes[command]["said"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document):
    links = re.findall(r"\]\(([^)#\s]+)(?:#([^)\s]+))?\)", document.read_text())
    for target, anchor in links:
        if not target.startswith("http"):
            found = document.parent / target
            assert found.exists(), target
            assert not anchor or anchor in anchors(found), f"{target}#{anchor}"


def anchors(document: Path):
    """The headings of a document, as links name them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
