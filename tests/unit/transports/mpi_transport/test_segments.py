"""Shared memory whose name is given up, and that of others left alone."""

import uuid
from pathlib import Path

import pytest

from transports.mpi.segments import give_up_names

SHM = Path("/dev/shm")
LINE = "7f0000000000-7f0000001000 rw-s 00000000 00:1a 2{:>30}{}\n"


@pytest.fixture
def segment():
    path = SHM / f"mpich_shm_{uuid.uuid4().hex}"
    path.touch()
    yield path
    path.unlink(missing_ok=True)


@pytest.mark.skipif(not SHM.is_dir(), reason="no /dev/shm")
def test_a_mapped_segment_loses_its_name_once_whoever_is_first(segment):
    maps = LINE.format("", segment) * 2 + LINE.format("", "/usr/lib/libc.so")
    give_up_names(maps)
    assert not segment.exists()
    give_up_names(maps)


@pytest.mark.skipif(not SHM.is_dir(), reason="no /dev/shm")
@pytest.mark.parametrize("mapped", ["{} (deleted)", "{}_other", "/elsewhere{}"])
def test_no_other_name_is_touched(segment, mapped):
    give_up_names(LINE.format("", mapped.format(segment)))
    assert segment.exists()
