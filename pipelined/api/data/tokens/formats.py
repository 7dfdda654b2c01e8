"""The texts of files, one after another, in chunks that fit in memory: plain text, JSON lines, Parquet, Arrow.

A Hugging Face dataset on disk (`save_to_disk`) is a directory of Arrow files, named in its `state.json`.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelined.errors import MALFORMED, UsageError, plain_name

if TYPE_CHECKING:
    import pyarrow

CHUNK = 1 << 20
"""Characters of plain text that are read at once."""
ROWS = 1024
"""Rows of a Parquet file that are read at once."""
STATE, SPLITS = "state.json", "dataset_dict.json"


@dataclass(frozen=True)
class TextChunk:
    """A chunk of a document's text.

    Args:
        text: what is tokenised.
        ends: whether a document ends here.
        size: bytes of the file that it took, about.
        counted: whether its tokens, and the end token after it, count as targets, where tokens are packed.
    """

    text: str
    ends: bool
    size: int
    counted: bool = True


def files_in(path: Path) -> list[Path]:
    """The file itself, the Arrow files of a dataset, or what a directory holds, in order of name, without hidden files.

    Raises:
        UsageError: there are none, or the dataset has several splits.
    """
    if not path.is_dir():
        return [path]
    if (path / SPLITS).is_file():
        splits = ", ".join(str(folder) for folder in sorted(path.iterdir()) if folder.is_dir())
        raise UsageError(f"{path} holds several splits; name one of them ({splits})")
    files = _dataset_files(path)
    if files is None:
        inside = sorted(file for file in path.rglob("*") if file.is_file() and file != path / STATE)
        files = [file for file in inside if not any(part.startswith(".") for part in file.relative_to(path).parts)]
    if not files:
        raise UsageError(f"the directory {path} holds no files of text; name one with text in it")
    return files


def _dataset_files(path: Path) -> list[Path] | None:
    """The Arrow files that a dataset's state names; None: the directory has no state, or that of another program.

    Raises:
        UsageError: the state cannot be read, or names a file outside the directory.
    """
    try:
        raw = (path / STATE).read_bytes() if (path / STATE).is_file() else b""
    except OSError as error:
        raise UsageError(f"cannot read {path / STATE} ({error.strerror}); make it readable, or move it away") from error
    try:
        names = [file["filename"] for file in json.loads(raw)["_data_files"]]
    except MALFORMED:
        return None
    try:
        return [path / plain_name(name) for name in names]
    except ValueError as error:
        raise UsageError(f"the dataset {path} is damaged ({STATE}: {error}); save it again") from error


def check(path: Path, field: str) -> None:
    """Refuse a file that cannot be opened, is empty, is of a format that is not read, or has columns and not this one.

    Args:
        field: the column, or the key in JSON, that holds the text.
    Raises:
        UsageError: see above.
    """
    try:
        with path.open("rb") as file:
            if not file.read(1):
                raise UsageError(f"{path} is empty (0 bytes); leave it out")
    except OSError as error:
        raise UsageError(f"cannot read {path} ({error.strerror}); name a file that you can read") from error
    if (fact := REFUSED.get(path.suffix.lower())) is not None:
        raise UsageError(f"{path} is {fact}, or leave it out")
    if (read_columns := COLUMNS.get(path.suffix.lower())) is not None:
        columns = read_columns(path)
        if field not in columns:
            fact = f"{path} has no column {field!r} (columns: {', '.join(columns)})"
            raise UsageError(f"{fact}; name one of them by --field")


def text_chunks(path: Path, field: str) -> Iterator[TextChunk]:
    """The texts of a file, in its order, by the suffix of its name: `.jsonl`, `.parquet`, `.arrow`, or else plain text.

    Upper and lower case mean the same in a suffix.

    Args:
        field: as in `check`.
    Raises:
        UsageError: a line is no JSON object with that key, what it holds is no text, or the file is damaged.
    """
    try:
        yield from READERS.get(path.suffix.lower(), _read_text)(path, field)
    except UsageError:
        raise
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read to its end ({error}); write it again, or leave it out") from error


def _read_text(path: Path, field: str) -> Iterator[TextChunk]:
    """A file of text is one document.

    It is cut between lines; see `_cut_position`.
    """
    text = ""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            while block := file.read(CHUNK):
                if "\0" in block:
                    raise UsageError(f"{path} is binary (it holds a zero byte); name text files")
                text += block
                position = _cut_position(text, max(0, len(text) - len(block) - 2))
                if position:
                    yield _chunk_of(text[:position], ends=False)
                text = text[position:]
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text ({error.reason}); convert it, or leave it out") from error
    yield _chunk_of(text, ends=True)


def _cut_position(text: str, start: int) -> int:
    """The last position where cutting the text changes no token; 0 if there is none at or after `start`.

    It is between two lines without white space at the end of one or the beginning of the other; else before the last
    of several line ends, which GPT-2's vocabulary never joins to those before it.
    """
    between_lines = [match.end() for match in re.finditer(r"(?<=\S)\n(?=\S)", text[start:])]
    positions = between_lines or [match.start() for match in re.finditer(r"\n(?=\S)", text[start:])]
    return start + positions[-1] if positions else 0


def _lines(path: Path, field: str) -> Iterator[TextChunk]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                row = loaded_row(line, f"line {number} of {path}")
                yield TextChunk(_text(row, field, f"line {number} of {path}"), True, len(line))


def _parquet(path: Path, field: str) -> Iterator[TextChunk]:
    with _arrow(path).parquet.ParquetFile(path) as file:
        share = path.stat().st_size // max(1, file.metadata.num_rows)
        for batch in file.iter_batches(ROWS, columns=[field]):
            yield from _rows(batch, field, path, share)


def _stream(path: Path, field: str) -> Iterator[TextChunk]:
    with _arrow(path).ipc.open_stream(path) as file:
        for batch in file:
            yield from _rows(batch, field, path, batch.nbytes // max(1, batch.num_rows))


def _rows(batch: "pyarrow.RecordBatch", field: str, path: Path, size: int) -> Iterator[TextChunk]:
    for value in batch.column(field).to_pylist():
        yield TextChunk(_text({field: value}, field, f"a row of {path}"), True, size)


def _parquet_columns(path: Path) -> list[str]:
    try:
        return list(_arrow(path).parquet.read_schema(path).names)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is no Parquet file ({error}); leave it out") from error


def _stream_columns(path: Path) -> list[str]:
    try:
        with _arrow(path).ipc.open_stream(path) as file:
            return list(file.schema.names)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is no stream of Arrow ({error}); leave it out") from error


READERS: dict[str, Callable[[Path, str], Iterator[TextChunk]]] = {
    ".jsonl": _lines,
    ".parquet": _parquet,
    ".arrow": _stream,
}
"""What reads a file, by the suffix of its name. Any other is plain text, except those of `REFUSED`."""
COLUMNS: dict[str, Callable[[Path], list[str]]] = {".parquet": _parquet_columns, ".arrow": _stream_columns}
"""What reads the names of a file's columns, where it has any."""
REFUSED = {
    ".json": "JSON, of which only lines are read; write one object a line to a .jsonl file",
    ".csv": "a table; write its texts to a .jsonl or .parquet file",
    ".gz": "compressed; decompress it",
    ".zst": "compressed; decompress it",
}
"""Formats that would otherwise be read as plain text, by suffix: what the file is, and the remedy."""


def _chunk_of(text: str, *, ends: bool) -> TextChunk:
    return TextChunk(text, ends, len(text.encode()))


def loaded_row(text: str | bytes, source: object) -> dict[str, Any]:
    """An object from its JSON. Raises UsageError, which names `source`, for anything else."""
    try:
        row = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{source} is not JSON ({error}); mend it, or leave it out") from error
    if not isinstance(row, dict):
        raise UsageError(f"{source} is no object ({type(row).__name__}); mend it, or leave it out")
    return row


def _text(row: dict[str, Any], field: str, line_name: str) -> str:
    if field not in row:
        raise UsageError(f"{line_name} has no {field!r} (keys: {', '.join(row)}); name one of them by --field")
    if not isinstance(row[field], str):
        fact = f"{line_name} holds no text in {field!r} ({type(row[field]).__name__})"
        raise UsageError(f"{fact}; name another by --field")
    require_utf8(row[field], line_name, field)
    return row[field]


def require_utf8(text: str, line_name: str, field: str) -> None:
    """Raises UsageError: the text has half of a character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"half a character in {field!r}: U+{ord(error.object[error.start]):04X}"
        raise UsageError(f"{line_name} cannot be UTF-8 ({half}); mend it, or leave it out") from error


def _arrow(path: Path) -> Any:
    """The package pyarrow, with the modules that read files."""
    try:
        import pyarrow.ipc
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise UsageError(f"{path} needs pyarrow; pip install 'pipelined[data]', or name other files") from error
    return pyarrow
