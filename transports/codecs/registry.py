"""The table of codecs by name, and finding a codec. A name is looked up in the table before anything is imported."""

from functools import lru_cache
from pkgutil import resolve_name

from transports.codecs.base import Codec

CODECS = {
    "bf16": "transports.codecs.bf16:build",
    "blockwise8": "transports.codecs.blockwise8:build",
    "fp16": "transports.codecs.fp16:build",
    "zstd": "transports.codecs.zstd:build",
}
"""The function that builds a codec, by the codec's name (its file's name). A new codec gets a line here."""


def codec_names() -> list[str]:
    """The names of all codecs, sorted."""
    return sorted(CODECS)


@lru_cache(maxsize=64)
def find_codec(spec: str) -> Codec:
    """The codec for a name with an optional argument: `blockwise8`, `blockwise8:256`, `zstd:9`.

    Raises:
        ValueError: no such codec (the error lists the known ones), or an argument that the codec does not take.
    """
    name, colon, argument = spec.partition(":")
    if name not in CODECS:
        raise ValueError(f"unknown codec {name[:40]!r}; known: {', '.join(codec_names())}")
    if colon and not argument:
        raise ValueError(f"empty argument in codec {spec!r}; write {name}")
    return resolve_name(CODECS[name])(argument)


def int_argument(spec: str, argument: str, default: int, minimum: int, maximum: int) -> int:
    """A codec's argument as a whole number.

    Raises:
        ValueError: it is not a whole number, or out of range.
    """
    if not argument:
        return default
    if not (argument.isascii() and argument.isdecimal() and len(argument) < 10 and minimum <= int(argument) <= maximum):
        raise ValueError(f"{spec} takes a number from {minimum} to {maximum} (got: {argument[:40]!r})")
    return int(argument)


def refuse_argument(spec: str, argument: str) -> None:
    """Refuse an argument.

    Raises:
        ValueError: there is one.
    """
    if argument:
        raise ValueError(f"{spec} takes no argument (got: {argument[:40]!r})")
