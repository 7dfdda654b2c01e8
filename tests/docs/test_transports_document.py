"""docs/transports.md and docs/collectives.md: each example that is a whole program prints what its comment says."""

import re
import sys

import pytest

from tests.launching import ROOT, launched

DOCUMENTS = ["docs/transports.md", "docs/collectives.md"]
BLOCKS = [
    block
    for path in DOCUMENTS
    for block in re.findall(r"^```python\n(.*?)^```$", (ROOT / path).read_text(), re.M | re.S)
]
PROGRAMS = [block for block in BLOCKS if "asyncio.run(" in block]


@pytest.mark.parametrize("program", PROGRAMS, ids=["ranks", "endpoints", "group"])
def test_an_example_prints_what_its_comment_says(program, monkeypatch):
    monkeypatch.delenv("PIPELINED_KEY", raising=False)
    done = launched([sys.executable, "-c", program], timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == re.search(r"print\(.*\)  # (.*)", program)[1]
