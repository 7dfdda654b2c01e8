"""What docs/asynchronous.md shows is the example, which is proved and settles as PipeDream by pairs does."""

import re

from pipelined.programs.costs import Costs
from pipelined.programs.pricing.price import price
from pipelined.programs.pricing.steady import steady
from pipelined.programs.proof.check import check
from pipelined.programs.recording import record
from pipelined.schedules import Shape, find
from tests.launching import ROOT

DOCUMENT = (ROOT / "docs" / "asynchronous.md").read_text()
EXAMPLE = ROOT / "docs" / "examples" / "pairs.py"


def test_the_file_shown_is_the_example():
    assert re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL) == [EXAMPLE.read_text()]


def test_the_example_is_right_and_holds_half_of_pipedream_s_delays():
    schedule, shape = find(str(EXAMPLE)), Shape(5, 4, steps=3)
    check(program := record(schedule, shape))
    assert price(program, Costs()).weight_copies == [3, 3, 2, 2, 1]
    assert steady(schedule, shape, Costs()).staleness == [2, 2, 1, 1, 0]
