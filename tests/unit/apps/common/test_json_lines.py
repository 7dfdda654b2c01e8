"""What --metrics writes: a line a row, and one message where there is no room."""

import json
from pathlib import Path

import pytest

from apps.common.json_lines import append
from pipelined.errors import UsageError


def test_rows_are_added_to_what_is_there(tmp_path):
    append(tmp_path / "rows")
    append(tmp_path / "rows", {"step": 0})
    append(tmp_path / "rows", {"step": 1}, {"step": 2})
    assert [json.loads(line)["step"] for line in (tmp_path / "rows").read_text().splitlines()] == [0, 1, 2]


def test_a_full_disk_is_reported_with_the_file_and_the_remedy():
    said = r"cannot write the metrics to /dev/full \(No space left on device\); make room there, or name another"
    with pytest.raises(UsageError, match=said):
        append(Path("/dev/full"), {"step": 0})
