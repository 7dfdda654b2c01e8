"""The hops of docs/planner.md are the functions that find a plan, in each of the four ways to ask for one."""

import pytest

from tests.docs.hops import NOTED, called_in, column_of, hops_in, is_defined, missing
from tests.launching import ROOT

TEXT = (ROOT / "docs" / "planner.md").read_text()
TABLE = TEXT.partition("## How one plan is found")[2].partition("\n## ")[0]
PLANS = f"""{NOTED}
import torch
import pipelined as pp
from torch.nn.functional import mse_loss
from pipelined.measurement import effort
effort.THOROUGH = effort.BRIEF  # the same hops in half the time
from apps.gpt2.__main__ import main as gpt2
from pipelined.__main__ import main
layers, batch = [lambda: torch.nn.Linear(4, 4)] * 2, (torch.ones(8, 4), torch.ones(8, 4))
settings = dict(loss=mse_loss, optimizer=torch.optim.SGD, transport="local")
small = "--layers 1 --d-model 16 --heads 2 --seq 8 --schedule gpipe".split()
sys.stdout, printed = sys.stderr, sys.stdout
threading.setprofile(note)
sys.setprofile(note)
match int(sys.argv[1]):
    case 1:
        pp.plan(layers, batch, **settings)
    case 2:
        main(["plan", "--global-batch", "2", "--json", *small])
    case 3:
        pp.train(layers, [batch], schedule="auto", **settings)
    case 4:
        text = ["--data", sys.argv[2], "--batch", "2", "--steps", "1", "--sample", "0"]
        gpt2(["--plan", "auto", "--transport", "local", "--depth", "2", "--width", "1", *small, *text])
sys.setprofile(None)
print(*called, sep="\\n", file=printed)
"""
"""A program that finds a plan in the way of a column of the table, and prints every function that was called."""


@pytest.mark.parametrize("hop", sorted(set(hops_in(TEXT))))
def test_every_hop_is_a_function_of_its_file(hop):
    assert is_defined(hop)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("column", [1, 2, 3, 4])
def test_a_plan_is_found_through_every_hop_of_its_column(column, tmp_path):
    text = tmp_path / "text"
    text.write_text("To be, or not to be, that is the question. " * 100)
    hops = column_of(TABLE, column)
    assert len(hops) > 15 and not missing(hops, called_in(PLANS, str(column), str(text)))
