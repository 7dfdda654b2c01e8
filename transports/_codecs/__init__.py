"""Codecs: arrays made smaller for the wire, and back. Everything here does without torch."""

from transports._codecs._contract import Codec
from transports._codecs._find import codec_names, find_codec
from transports._codecs._packing import MOST_BYTES, Packed, pack, unpack

__all__ = ["MOST_BYTES", "Codec", "Packed", "codec_names", "find_codec", "pack", "unpack"]
