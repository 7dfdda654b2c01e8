"""Codecs: arrays made smaller for the wire, and restored. Nothing here needs torch."""

from transports.codecs.base import Codec
from transports.codecs.packing import MAX_PACKED_BYTES, Packed, pack, unpack
from transports.codecs.registry import codec_names, find_codec

__all__ = ["MAX_PACKED_BYTES", "Codec", "Packed", "codec_names", "find_codec", "pack", "unpack"]
