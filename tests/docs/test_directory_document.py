"""docs/directory.md: its limits, constants and transitions are the code's, and its example prints what it says."""

import re
import sys
from dataclasses import fields

from pipelined.aio.latency import MIN_TIMEOUT_S
from pipelined.membership.directory import DirectoryLimits
from pipelined.membership.directory.client.retry import MIN_PATIENCE_S, PATIENCE_S
from pipelined.membership.directory.server.journal import MAGIC, MIN_COMPACTED
from pipelined.membership.directory.server.state_machine import TRANSITIONS
from tests.launching import ROOT, launched

TEXT = (ROOT / "docs/directory.md").read_text()


def test_every_limit_is_there():
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", TEXT, re.MULTILINE)
    assert [(name, float(most)) for name, most in rows] == [
        (each.name, float(each.default)) for each in fields(DirectoryLimits)
    ]


def test_every_transition_is_there():
    named = re.search(r"The transitions are (.*?), which together", TEXT, re.DOTALL)[1]
    assert set(re.findall(r"`(\w+)`", named)) == set(TRANSITIONS)


def test_the_figures_are_the_codes():
    figures = (
        f"({PATIENCE_S:g} s)",
        f"joins a swarm waits {PATIENCE_S:g} s",
        f"the length of its lease, and at least {MIN_PATIENCE_S:g} s",
        f"at least {MIN_TIMEOUT_S} s",
        f"Beyond {MIN_COMPACTED >> 20} MiB",
        MAGIC.decode().strip(),
    )
    assert [figure for figure in figures if figure not in " ".join(TEXT.split())] == []


def test_the_example_prints_what_its_comment_says(monkeypatch):
    monkeypatch.delenv("PIPELINED_KEY", raising=False)
    (program,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    done = launched([sys.executable, "-c", program], timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == re.search(r"print\(.*\)  # (.*)", program)[1]
