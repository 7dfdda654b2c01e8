"""Libraries are loaded in processes of their own, and one that breaks says why."""

import os
import sys

import pytest

from pipelined.measurement.doctor.libraries import load, run_probe, without_launcher


def broken(path, **modules):
    """An environment in which modules say something when they are imported, and fail."""
    for name, words in modules.items():
        (path / name).mkdir()
        (path / name / "__init__.py").write_text(f"raise ImportError({words!r})\n")
    return {**os.environ, "PYTHONPATH": str(path)}


def test_libraries_that_break_are_named_with_their_last_words(tmp_path):
    libraries = load(broken(tmp_path, mpi4py="no libmpi.so", torch="no libtorch.so"))
    assert (libraries.mpi, libraries.mpi_error) == (None, "ImportError: no libmpi.so")
    assert (libraries.torch, libraries.torch_error) == (None, "ImportError: no libtorch.so")
    assert (libraries.mpi_threads, libraries.devices) == (None, [])


def test_the_mpi_that_is_there_is_named(tmp_path):
    libraries = load(broken(tmp_path, torch="none"))
    assert libraries.mpi.startswith(("MPICH Version", "Open MPI")) and libraries.mpi_error is None
    assert libraries.mpi_threads in ("single", "funneled", "serialized", "multiple")
    assert "mpi4py" in libraries.packages


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import os; os.abort()", "exit code -6"),
        ("print('hello')", "no answer"),
        ("", "no answer"),
        ("1/0", "ZeroDivision"),
    ],
)
def test_a_process_that_gives_no_answer_is_explained(program, reason):
    answer, error = run_probe(sys.executable, program, os.environ)
    assert answer == {} and error.startswith(reason)


def test_a_python_that_cannot_be_started_is_explained(tmp_path):
    answer, error = run_probe(str(tmp_path / "python"), "", os.environ)
    assert answer == {} and "No such file" in error


def test_what_launchers_leave_in_the_environment_is_taken_out():
    kept_environment = {"PATH": "/bin", "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    launched = {"PMI_RANK": "0", "PMI_FD": "7", "OMPI_COMM_WORLD_SIZE": "2", "RANK": "0", "SLURM_PROCID": "0"}
    assert without_launcher({**kept_environment, **launched}) == kept_environment
