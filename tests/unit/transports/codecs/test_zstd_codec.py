"""Zstandard is used where it helps, at the level asked for, and opens no frame that promises something else."""

import numpy as np
import pytest
import zstandard

from transports import Block, WireError, find_codec, pack, unpack
from transports.wire.arrays import ArrayType

ZEROS = bytes(1 << 20)


def test_what_has_no_pattern_travels_as_it_is():
    noise = Block.of(np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8))
    assert find_codec("zstd").encode(noise) is None
    assert find_codec("zstd").encode(Block.of(noise.data[:100])) is None


def test_a_higher_level_makes_less_of_the_same():
    words = np.random.default_rng(0).choice([b"one ", b"two ", b"three ", b"four "], 50_000)
    text = b"".join(words.tolist())
    (fast,), (slow,) = (find_codec(name).encode(Block.of(text)) for name in ("zstd:1", "zstd:19"))
    assert slow.nbytes < fast.nbytes < len(text) / 2


@pytest.mark.parametrize("level", ["0", "20", "-1", "fast"])
def test_an_invalid_level_is_refused(level):
    with pytest.raises(ValueError, match="zstd takes a number from 1 to 19"):
        find_codec(f"zstd:{level}")


def opened(frame, original):
    return unpack([Block.of(frame)], ["zstd", [["uint8", [original], 1]]])


def test_a_zstd_frame_with_too_large_a_size_is_refused():
    bomb = zstandard.ZstdCompressor().compress(ZEROS)
    assert len(bomb) < 1000
    with pytest.raises(WireError, match=f"another size .holds: {len(ZEROS)}, announced: 1000 bytes"):
        opened(bomb, 1000)


def test_a_zstd_frame_without_its_size_is_refused():
    hidden = zstandard.ZstdCompressor(write_content_size=False).compress(ZEROS)
    with pytest.raises(WireError, match=r"another size .holds: unknown"):
        opened(hidden, 1000)


def test_a_zstd_frame_with_a_false_size_is_refused():
    frame = bytearray(zstandard.ZstdCompressor().compress(ZEROS))
    place = frame.index((1 << 20).to_bytes(4, "little"))
    frame[place : place + 4] = (1000).to_bytes(4, "little")
    with pytest.raises(WireError, match="broken zstd frame"):
        opened(frame, 1000)


@pytest.mark.parametrize("damage", ["cut", "trailing", "flipped", "empty"])
def test_a_damaged_frame_is_refused(damage):
    plain = bytes(range(256)) * 400
    whole = zstandard.ZstdCompressor(write_checksum=True).compress(plain)
    flipped = whole[:-1] + bytes([whole[-1] ^ 1])
    frame = {"cut": whole[:-9], "trailing": whole + b"?", "flipped": flipped, "empty": b""}[damage]
    with pytest.raises(WireError, match="zstd frame"):
        opened(frame, len(plain))


def test_two_parts_are_no_frame():
    part = Block.of(zstandard.ZstdCompressor().compress(ZEROS))
    with pytest.raises(WireError, match="expected one uint8 part"):
        find_codec("zstd").check((part, part), ArrayType("uint8", (1 << 20,)))


def test_what_comes_out_may_be_written_to():
    packed = pack("zstd", [np.zeros(100_000)])
    assert packed.nbytes < 1000 and packed.original_bytes == 800_000
    (block,) = unpack(packed.blocks, packed.note)
    assert not block.data.readonly
