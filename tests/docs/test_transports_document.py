"""The examples of the documents on transports and collectives print what their comments say."""

import re
import sys
from textwrap import indent

import pytest

from tests.launching import ROOT, launched

NAMES = ["transports", "endpoints", "codecs", "collectives"]
TEXTS = [(ROOT / "docs" / f"{name}.md").read_text() for name in NAMES]
BLOCKS = [block for text in TEXTS for block in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)]
PROGRAMS = [block for block in BLOCKS if "asyncio.run(" in block]
PARTS = [block for block in BLOCKS if block not in PROGRAMS]


def printed(program):
    done = launched([sys.executable, "-c", program], timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("program", PROGRAMS, ids=["ranks", "requests", "world", "faults", "codec", "group"])
def test_an_example_prints_what_its_comment_says(program, monkeypatch):
    monkeypatch.delenv("PIPELINED_KEY", raising=False)
    assert printed(program) == re.search(r"print\(.*\)  # (.*)", program)[1]


@pytest.mark.parametrize("part", PARTS, ids=["measured", "allocated", "accumulated", "segments"])
def test_a_shorter_example_runs_in_the_place_of_the_all_reduce(part):
    program, replaced = re.subn(r"^    await all_reduce.*\n", indent(part, "    "), PROGRAMS[-1], flags=re.M)
    result = re.findall(r"  # (.*)", part)[-1]
    assert replaced == 1 and printed(program) == f"{result} {result}"
