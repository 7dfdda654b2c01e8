"""The file of --metrics: one JSON object a line. A reader at any time finds whole lines."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelined.errors import UsageError


def append(path: Path, *rows: Mapping[str, Any]) -> None:
    """Append one line for each row. Without rows it only checks that the file can be written.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        with path.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    except OSError as error:
        fact = f"cannot write the metrics to {path} ({error.strerror})"
        raise UsageError(f"{fact}; make room there, or name another --metrics") from error
