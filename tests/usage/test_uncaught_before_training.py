"""A user's own program that fails on one rank outside `pp.train`, while the other ranks wait in it."""

import pytest

from tests.launching import ROOT, launched, mpirun

PROGRAM = """
import os, sys
import pipelined as pp
import torch

def train():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    batches = [(torch.ones(4, 4), torch.zeros(4, 2))]
    loss, optimizer = torch.nn.functional.mse_loss, lambda parameters: torch.optim.SGD(parameters, 0.1)
    pp.train(model, batches, optimizer=optimizer, loss=loss, schedule="gpipe", depth=2)

if "between" in sys.argv:
    train()
if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1":
    open("/absent")
train()
"""


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(
    ("launcher", "moment"),
    [("mpich", "before"), ("mpich", "between"), pytest.param("openmpi", "between", marks=pytest.mark.full)],
)
def test_an_exception_on_one_rank_is_printed_once_and_ends_all_with_1(launcher, moment, tmp_path):
    """Until MPI_Init the other ranks would wait for 300 s; between two trainings, for ever."""
    (tmp_path / "program.py").write_text(PROGRAM)
    command, env = mpirun(launcher, 2, tmp_path / "program.py", moment)
    done = launched(command, timeout=100, env={**env, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("Traceback") == 1 and "No such file or directory: '/absent'" in done.stderr
