"""docs/transports.md: the example of two endpoints does what it says."""

import re
import sys

from tests.launching import ROOT, launched


def test_the_example_of_two_endpoints_runs(monkeypatch):
    monkeypatch.delenv("PIPELINED_KEY", raising=False)
    text = (ROOT / "docs/transports.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    done = launched([sys.executable, "-c", example], timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "[0. 2. 4.]" and f"# {done.stdout.strip()}\n" in example
