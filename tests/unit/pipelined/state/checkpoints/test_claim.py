"""A directory belongs to one run at a time: another is refused; the lock of a dead run is free."""

import errno
import fcntl
import json
import os
import socket
import subprocess
import sys

import pytest

from pipelined.state.checkpoints.checkpoint import CheckpointError
from pipelined.state.checkpoints.claim import LOCK, claim


def test_a_second_run_is_refused_with_the_process_that_has_the_directory(tmp_path):
    with claim(tmp_path / "runs", "one") as first:
        assert first.is_held and not first.warning
        holder = rf"in use by another run \(process {os.getpid()} on {socket.gethostname()}\); wait for its end"
        with pytest.raises(CheckpointError, match=holder):
            claim(tmp_path / "runs", "other")
    claim(tmp_path / "runs", "other").release()


def test_processes_of_one_run_share_a_directory_until_the_last_has_gone(tmp_path):
    first, second = claim(tmp_path, "one"), claim(tmp_path, "one")
    first.release()
    with pytest.raises(CheckpointError, match="in use by another run"):
        claim(tmp_path, "other")
    second.release()
    claim(tmp_path, "other").release()


def test_the_lock_of_a_killed_run_is_free_at_once(tmp_path):
    taken = f"from pipelined.state.checkpoints.claim import claim; c = claim({str(tmp_path)!r}, 'one')"
    program = f"{taken}; print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        with pytest.raises(CheckpointError, match=rf"process {process.pid} on"):
            claim(tmp_path, "other")
        process.kill()
        process.wait()
        claim(tmp_path, "other").release()
    assert json.loads((tmp_path / LOCK).read_text())["run"] == "other"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run": "one"}'])
def test_a_lock_that_does_not_say_which_run_holds_it_is_refused(tmp_path, text):
    (tmp_path / LOCK).write_text(text)
    with (tmp_path / LOCK).open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        with pytest.raises(CheckpointError, match=r"in use by another run \(.*lock does not say which\)"):
            claim(tmp_path, "one")


def test_a_file_system_without_locks_is_reported_and_not_refused(tmp_path, monkeypatch):
    def refused(descriptor, mode):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    with claim(tmp_path, "one") as unlocked:
        assert not unlocked.is_held
        assert "cannot be locked (No locks available), so a second run" in unlocked.warning


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_reported_as_such_and_not_as_missing_locks(tmp_path, monkeypatch, fault):
    def refused(*_):
        raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr(os, "pwrite", refused)
    with pytest.raises(CheckpointError, match=rf"{os.strerror(fault)}\); free or choose another place"):
        claim(tmp_path, "one")


def test_a_place_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot save into .*name another directory"):
        claim(tmp_path / "file", "one")
