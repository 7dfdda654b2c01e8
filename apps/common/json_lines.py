"""The file of --metrics: a JSON object a line. The one rule: what it has is whole, whenever somebody reads it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelined.errors import UsageError


def append(path: Path, *rows: Mapping[str, Any]) -> None:
    """Add lines; none only finds out whether there can be some.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        with path.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    except OSError as error:
        fact = f"cannot write the metrics to {path} ({error.strerror})"
        raise UsageError(f"{fact}; make room there, or name another --metrics") from error
