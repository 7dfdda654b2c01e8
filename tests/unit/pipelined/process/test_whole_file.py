"""A file is replaced by a whole one, or stays as it was."""

import errno
import os

import pytest

from pipelined.process.whole_file import whole_file


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_when_it_is_whole(tmp_path, durable):
    path = tmp_path / "a.json"
    path.write_text("before")
    with whole_file(path, durable) as part:
        part.write_text("after")
        assert path.read_text() == "before" and part.parent == tmp_path
    assert path.read_text() == "after" and list(tmp_path.iterdir()) == [path]


def test_after_an_error_the_file_is_as_it_was_and_nothing_else_is_there(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("before")
    with pytest.raises(ZeroDivisionError), whole_file(path) as part:
        part.write_text("af")
        raise ZeroDivisionError
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def synced(monkeypatch, replaced):
    """The names that fsync is called with, each with whether the file was replaced by then."""
    calls, fsync = [], os.fsync

    def noted(descriptor):
        calls.append((os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")), replaced()))
        return fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return calls


def test_a_durable_file_is_synced_before_it_replaces_another_and_its_directory_afterwards(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    calls = synced(monkeypatch, path.exists)
    with whole_file(path, durable=True) as part:
        part.write_text("after")
    assert calls == [(part.name, False), (tmp_path.name, True)]


def test_without_durable_nothing_is_synced(tmp_path, monkeypatch):
    calls = synced(monkeypatch, bool)
    with whole_file(tmp_path / "a.json") as part:
        part.write_text("after")
    assert calls == []


def test_a_system_that_opens_no_directory_or_syncs_none_writes_the_file_all_the_same(tmp_path, monkeypatch):
    path, opened, fsync = tmp_path / "a.json", os.open, os.fsync

    def refuse_to_open(name, *rest, **more):
        if os.path.isdir(name):
            raise PermissionError(errno.EACCES, "no directory is opened here")
        return opened(name, *rest, **more)

    def refuse_to_sync(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, "no directory is synced here")
        fsync(descriptor)

    for name, refusal in (("open", refuse_to_open), ("fsync", refuse_to_sync)):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, refusal)
            with whole_file(path, durable=True) as part:
                part.write_text(name)
        assert path.read_text() == name


def test_a_disk_that_fails_under_a_directory_is_an_error(tmp_path, monkeypatch):
    def failing(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, "the disk fails")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="the disk fails"), whole_file(tmp_path / "a.json", durable=True) as part:
        part.write_text("after")
