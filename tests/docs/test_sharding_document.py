"""docs/sharding.md: its first program prints what it shows, and its model of the reader's own trains."""

import re
from contextlib import redirect_stdout
from io import StringIO

import torch

import pipelined as pp
from tests.launching import ROOT

DOCUMENT = (ROOT / "docs" / "sharding.md").read_text()

PROGRAMS = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


def test_the_model_of_the_readers_own_trains_with_its_operator():
    images, classes = torch.randn(4, 1, 8, 8), torch.randint(10, (4,))
    _, train, operator = PROGRAMS
    scope = {"batches": [(images, classes)], "torch": torch, "pp": pp}
    exec(operator, scope)
    exec(train, scope)
    first = scope["done"].losses
    exec(train.replace("lambda: torch.nn.Linear(288, 10)", "Product").replace(",3=1.2.1", ""), scope)
    assert len(first) == len(scope["done"].losses) == 3


def test_the_program_prints_what_the_document_shows():
    program = PROGRAMS[0]
    shown = re.search(r"It prints [^\n]*\n\n```text\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)[1]
    with redirect_stdout(StringIO()) as printed:
        exec(program, {})
    assert printed.getvalue() == shown
