"""Benchmarks of MPI that were not started by a launcher say how they are, and end as wrong flags do."""

import os
import sys

import pytest

from benchmarks import all_reduce, auto, point_to_point


@pytest.mark.parametrize("program", [all_reduce, auto, point_to_point], ids=lambda program: program.__name__)
def test_without_ranks_of_mpi_the_error_has_the_command_that_starts_them(program, monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["benchmark"])
    monkeypatch.setattr(os, "environ", {})
    assert program.main() == 2
    said = capfd.readouterr().err
    assert "ranks of MPI are needed (launched by: no launcher, ranks: 1)" in said and program.__name__ in said
