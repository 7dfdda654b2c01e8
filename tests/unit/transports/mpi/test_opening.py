"""Opening MPI: a launcher of another MPI, ranks that do not come, and names of shared memory."""

import threading
import uuid
from pathlib import Path

import pytest

from transports import RendezvousError
from transports.mpi import opening
from transports.mpi.opening import check_launcher, check_library, init_timeout, required_environment, unlink_segments


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
def test_slurm_gets_ofi_addresses_by_default(version, environ, module):
    """Slurm's PMI-2 cut MPICH's UCX address where the memory behind it had few zeros: jobs aborted or hung at once."""
    assert required_environment(version, environ).get("MPIR_CVAR_CH4_NETMOD") == module


def reason(environ, monkeypatch):
    """What a rank of this environment says when the others do not come."""
    monkeypatch.setattr(opening, "GRACE_S", 0.001)
    said, heard = [], threading.Event()

    def end(text):
        said.append(text)
        heard.set()

    monkeypatch.setattr(opening, "_exit", end)
    with init_timeout(0.001, environ):
        assert heard.wait(20)
    return said[0]


def test_the_error_of_rank_0_has_the_number_of_ranks_and_how_to_wait_longer(monkeypatch):
    text = reason({"PMI_RANK": "0", "PMI_SIZE": "4"}, monkeypatch)
    assert text.startswith("rank 0 waited 0.001 s for all ranks to open MPI (ranks: 4); at least one of the others")
    assert text.endswith("--transport 'mpi://?wait=0.002'")


def test_the_error_of_another_rank_names_rank_0_as_missing(monkeypatch):
    text = reason({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"}, monkeypatch)
    assert text.startswith("rank 3 waited 0.001 s for all ranks to open MPI (ranks: 8); rank 0, and perhaps another")


@pytest.mark.parametrize("error", [None, ValueError])
def test_the_timer_ends_with_the_block(error):
    before = set(threading.enumerate())
    try:
        with init_timeout(1000, {}):
            (timer,) = set(threading.enumerate()) - before
            if error:
                raise error
    except ValueError:
        pass
    timer.join(20)
    assert not timer.is_alive()


SHM = Path("/dev/shm")
LINE = "7f0000000000-7f0000001000 rw-s 00000000 00:1a 2{:>30}{}\n"


@pytest.fixture
def segment():
    path = SHM / f"mpich_shm_{uuid.uuid4().hex}"
    path.touch()
    yield path
    path.unlink(missing_ok=True)


@pytest.mark.skipif(not SHM.is_dir(), reason="no /dev/shm")
def test_a_mapped_segment_loses_its_name_once(segment):
    maps = LINE.format("", segment) * 2 + LINE.format("", "/usr/lib/libc.so")
    unlink_segments(maps)
    assert not segment.exists()
    unlink_segments(maps)


@pytest.mark.skipif(not SHM.is_dir(), reason="no /dev/shm")
@pytest.mark.parametrize("mapped", ["{} (deleted)", "{}_other", "/elsewhere{}"])
def test_no_other_name_is_touched(segment, mapped):
    unlink_segments(LINE.format("", mapped.format(segment)))
    assert segment.exists()
