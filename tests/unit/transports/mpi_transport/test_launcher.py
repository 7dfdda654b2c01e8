"""A launcher that gave every rank a world of its own is noticed."""

import pytest

from transports import RendezvousError
from transports.mpi.launcher import check_launcher, check_library, settings


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"])
def test_silent_singletons_are_refused_with_both_numbers_and_the_remedy(name):
    with pytest.raises(RendezvousError) as error:
        check_launcher(1, {name: "4"})
    assert all(word in str(error.value) for word in ("4 ranks", "world of 1", name, "--mpi=pmi2"))


@pytest.mark.parametrize(
    ("world_size", "environ"),
    [
        (1, {}),
        (4, {"PMI_SIZE": "4"}),
        (8, {"PMI_SIZE": "8", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}),
        (8, {"OMPI_COMM_WORLD_SIZE": "8", "SLURM_NTASKS": "16"}),
        (1, {"SLURM_NTASKS": ""}),
        (1, {"SLURM_NTASKS": "4(x2)"}),
    ],
)
def test_the_nearest_launcher_counts(world_size, environ):
    check_launcher(world_size, environ)


MPICH = "MPICH Version:      5.0.2\nMPICH Device:       ch4:ucx ofi\nMPICH configure: …"
OPEN_MPI = "Open MPI v5.0.11, package: …"


@pytest.mark.parametrize(
    ("version", "environ"), [(MPICH, {"OMPI_COMM_WORLD_SIZE": "4"}), (OPEN_MPI, {"PMI_SIZE": "4", "PMI_RANK": "0"})]
)
def test_a_library_that_cannot_speak_with_the_launcher_is_refused_before_it_is_initialised(version, environ):
    with pytest.raises(RendezvousError, match=r"started 4 ranks, but .* use the mpirun that pip installed beside"):
        check_library(version, environ)


@pytest.mark.parametrize(
    ("version", "environ"),
    [
        (MPICH, {}),
        (MPICH, {"PMI_SIZE": "4"}),
        (OPEN_MPI, {}),
        (OPEN_MPI, {"OMPI_COMM_WORLD_SIZE": "4", "PMI_SIZE": "2"}),
        (OPEN_MPI, {"PMIX_RANK": "0", "PMI_SIZE": "4"}),
    ],
)
def test_any_library_will_do_for_any_other_launcher(version, environ):
    check_library(version, environ)


SLURM = {"SLURM_MPI_TYPE": "pmi2", "PMI_SIZE": "4"}


@pytest.mark.parametrize(
    ("version", "environ", "module"),
    [
        (MPICH, SLURM, "ofi"),
        (MPICH.replace("ucx ofi", "ofi,ucx"), SLURM, "ofi"),
        (MPICH.replace("ucx ofi", "ucx"), SLURM, None),
        (MPICH, SLURM | {"MPIR_CVAR_CH4_NETMOD": "ucx"}, None),
        (MPICH, {"SLURM_MPI_TYPE": "pmix"}, None),
        (MPICH, {"PMI_SIZE": "4"}, None),
        (OPEN_MPI, SLURM, None),
    ],
)
def test_slurm_is_told_no_address_it_would_cut_unless_the_user_says_so(version, environ, module):
    """Slurm's PMI-2 cut MPICH's UCX address where the memory behind it had few zeros: jobs aborted or hung at once."""
    assert settings(version, environ).get("MPIR_CVAR_CH4_NETMOD") == module
