"""docs/sharding.md: its program prints what it shows."""

import re
from contextlib import redirect_stdout
from io import StringIO

from tests.launching import ROOT

DOCUMENT = (ROOT / "docs" / "sharding.md").read_text()


def test_the_program_prints_what_the_document_shows():
    (program,) = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    shown = re.search(r"It prints [^\n]*\n\n```text\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)[1]
    with redirect_stdout(StringIO()) as printed:
        exec(program, {})
    assert printed.getvalue() == shown
