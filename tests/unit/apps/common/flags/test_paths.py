"""A place that cannot be written to, or holds what is not its own, is refused by name before anything is written."""

import json
from pathlib import Path

import pytest

from apps.common.flags.paths import GPT2_TYPE, ROTARY_TYPE, check_directory, check_export, check_file, read_config_json
from pipelined.errors import UsageError


def test_files_are_wanted_where_there_are_directories(tmp_path: Path):
    with pytest.raises(UsageError, match="is a directory; give --metrics a file"):
        check_file("--metrics", tmp_path)
    with pytest.raises(UsageError, match=r"cannot write .*; name another --metrics"):
        check_file("--metrics", tmp_path / "absent" / "file")
    check_file("--metrics", tmp_path / "new")


def test_a_file_where_a_directory_is_needed_is_refused(tmp_path: Path):
    file = tmp_path / "thesis.txt"
    file.write_text("years of work")
    for place in (file, file / "below"):
        with pytest.raises(UsageError, match=r"thesis.txt is a file; give --checkpoint a directory"):
            check_directory("--checkpoint", place)
    check_directory("--checkpoint", tmp_path / "new" / "below")
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("function", [check_file, check_directory])
def test_a_folder_without_permission_to_write_is_refused_with_the_reason(function, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, wanted: False)
    with pytest.raises(UsageError, match="no right to"):
        function("--flag", tmp_path / "new")


@pytest.mark.parametrize("kind, other", [(GPT2_TYPE, ROTARY_TYPE), (ROTARY_TYPE, GPT2_TYPE)])
def test_only_an_earlier_export_of_its_kind_is_written_over(kind: str, other: str, tmp_path: Path):
    check_export(tmp_path, kind)
    (tmp_path / "notes").write_text("mine")
    for about in (None, "no json", "[]", "{}", json.dumps({"model_type": other})):
        if about is not None:
            (tmp_path / "config.json").write_text(about)
        with pytest.raises(UsageError, match=r"something else than a .*\(entries: \d\); give --to a new directory"):
            check_export(tmp_path, kind, "--to")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    check_export(tmp_path, kind)
    assert read_config_json(tmp_path) == {"model_type": kind}
    with pytest.raises(UsageError, match="notes is a file; give --export a directory"):
        check_export(tmp_path / "notes", kind)
