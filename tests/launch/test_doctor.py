"""The doctor answers alone, under mpirun, and where libraries are broken or do not belong together."""

import json
import sys

import pytest

from pipelined.measurement.timed.collective_costs import CALLS
from tests.launching import OPENMPI, launched, mpirun, python_with

DOCTOR = ["-m", "pipelined", "doctor", "--json"]


@pytest.fixture
def without(tmp_path):
    """An environment in which some modules cannot be imported."""

    def environment(*modules):
        for name in modules:
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").write_text("raise ImportError('broken')\n")
        return {"PYTHONPATH": str(tmp_path)}

    return environment


def answered(command, env):
    done = launched(command, timeout=100, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("wheel", ["mpich", pytest.param("openmpi", marks=pytest.mark.full)])
def test_under_mpirun_links_and_sums_are_measured(wheel, without):
    command, env = mpirun(wheel, 2, *DOCTOR)
    found = answered(command, {**env, **without("torch")})
    (node,) = found["nodes"]
    assert node["ranks"] == [0, 1] and wheel in node["libraries"]["packages"]
    assert found["links"]["near"]["alpha"] > 0 and found["links"]["far"] is None
    assert [one["nbytes"] for one in found["links"]["sums"]][-1] == 1 << 24
    (costs,) = found["collectives"].values()
    assert costs["ranks"] == [0, 1] and set(costs["each"]) == set(CALLS)
    assert list(costs["joint"]) == ["alpha", "beta", "gamma"] and costs["pooled"]["alpha"][0] > 0
    assert ["torch cannot be imported" in advice["fact"] for advice in found["advice"] if advice["stops"]] == [True]


def test_alone_it_says_how_links_are_measured():
    found = answered([sys.executable, *DOCTOR], {})
    libraries = found["nodes"][0]["libraries"]
    assert found["links"] is None and found["collectives"] == {}
    assert libraries["torch"] and libraries["torch_threads"] >= 1
    assert any("mpirun -n 4 python -m pipelined doctor" in advice["remedy"] for advice in found["advice"])


def test_broken_libraries_are_findings(without):
    command, env = mpirun("mpich", 2, *DOCTOR)
    found = answered(command, {**env, **without("mpi4py", "torch")})
    assert "no MPI library could be loaded" in found["trouble"]
    first, *others = found["advice"]
    assert first["stops"] and "could be loaded (broken)" in first["fact"] and "pip install" in first["remedy"]
    assert any("torch cannot be imported" in advice["fact"] for advice in others)


@pytest.mark.full
def test_a_launcher_of_another_mpi_is_a_finding(without):
    command = [python_with("openmpi").with_name("mpirun"), "-n", 1, python_with("mpich"), *DOCTOR]
    found = answered(command, {**OPENMPI, **without("torch")})
    assert "do not belong together" in found["trouble"] and found["advice"][0]["stops"]
