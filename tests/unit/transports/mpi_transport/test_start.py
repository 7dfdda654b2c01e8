"""A rank that waits too long for the others to open MPI says so and ends; the wait is in C, so a timer does it."""

import threading

import pytest

from transports.mpi import start as _mpi_start
from transports.mpi.start import limited


def reason(environ, monkeypatch):
    """What a rank of this environment says when the others do not come."""
    monkeypatch.setattr(_mpi_start, "GRACE", 0.001)
    said, heard = [], threading.Event()

    def end(text):
        said.append(text)
        heard.set()

    monkeypatch.setattr(_mpi_start, "_exit", end)
    with limited(0.001, environ):
        assert heard.wait(20)
    return said[0]


def test_rank_0_says_how_many_ranks_there_are_and_how_to_wait_longer(monkeypatch):
    text = reason({"PMI_RANK": "0", "PMI_SIZE": "4"}, monkeypatch)
    assert text.startswith("rank 0 waited 0.001 s for all ranks to open MPI (ranks: 4); at least one of the others")
    assert text.endswith("--transport 'mpi://?wait=0.002'")


def test_another_rank_that_is_not_ended_by_rank_0_says_that_rank_0_is_missing(monkeypatch):
    text = reason({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"}, monkeypatch)
    assert text.startswith("rank 3 waited 0.001 s for all ranks to open MPI (ranks: 8); rank 0, and perhaps another")


@pytest.mark.parametrize("error", [None, ValueError])
def test_the_timer_ends_with_the_block(error):
    before = set(threading.enumerate())
    try:
        with limited(1000, {}):
            (timer,) = set(threading.enumerate()) - before
            if error:
                raise error
    except ValueError:
        pass
    timer.join(20)
    assert not timer.is_alive()
