"""Large tensors go through a codec in chunks, and arrive as if they had gone in one piece."""

import asyncio

import numpy as np
import pytest

from pipelined.actors.actor import Actor
from pipelined.programs.addresses import Activation
from pipelined.training.exchange.compression import CHUNK_BYTES, allocate_tensor, chunk_note, cut, fill
from pipelined.training.exchange.messages import StageMessages
from transports import Block, WireError, pack, unpack
from transports.local import world

KEY = Activation(step=7, pipe=0, stage=1, microbatch=3).key
LARGE = np.random.default_rng(0).standard_normal((3, CHUNK_BYTES // 4 - 1000)).astype(np.float32)


def carried(codec, tensor):
    """What arrives at rank 1, and what rank 0 has sent."""

    async def main():
        sender_end, receiver_end = world(2)
        async with Actor(sender_end) as teller, Actor(receiver_end) as listener:
            sending = teller.start(StageMessages(teller, codec).send(1, KEY, tensor))
            frame = await StageMessages(listener, codec).receive(0, KEY)
            await sending
        return frame, sender_end.traffic

    return asyncio.run(main())


@pytest.mark.parametrize("nbytes", [0, 4, CHUNK_BYTES - 4, CHUNK_BYTES])
def test_what_fits_a_chunk_is_not_cut(nbytes):
    block = Block.of(np.zeros(nbytes // 4, np.float32))
    assert cut(block) == [block] and chunk_note(block, 0, "header") == "header"
    assert allocate_tensor(["zstd", []]) == (None, ["zstd", []])


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "complex128"])
def test_chunks_are_views_that_follow_one_another(dtype):
    array = (np.arange(3 * CHUNK_BYTES // 2) % 100).astype(dtype)
    block = Block.of(array)
    chunks = cut(block)
    assert len(chunks) == -(-array.nbytes // CHUNK_BYTES) and {chunk.dtype for chunk in chunks} == {dtype}
    assert (np.concatenate([chunk.numpy() for chunk in chunks]) == array).all()
    assert all(np.shares_memory(chunk.numpy(), array) for chunk in chunks)


@pytest.mark.parametrize("codec", ["blockwise8", "blockwise8:256", "bf16", "fp16"])
def test_a_large_tensor_arrives_as_in_one_piece(codec):
    packed = pack(codec, [LARGE])
    (whole,) = unpack(packed.blocks, packed.note)
    frame, traffic = carried(codec, LARGE)
    (block,) = frame.blocks
    assert (frame.source, frame.key, block.dtype, block.shape) == (0, KEY, "float32", LARGE.shape)
    assert (block.numpy() == whole.numpy()).all()
    assert traffic.bytes_to == {1: packed.nbytes} and traffic.messages_sent == 3


def test_chunks_that_a_codec_leaves_as_they_are_arrive_too():
    ids = np.arange(CHUNK_BYTES // 4).reshape(2, -1)
    frame, _ = carried("blockwise8", ids)
    assert (frame.blocks[0].numpy() == ids).all() and frame.blocks[0].dtype == "int64"


def test_a_value_that_cannot_be_carried_is_named_with_the_chunk_that_it_is_in():
    spoilt = LARGE.copy()
    spoilt.reshape(-1)[CHUNK_BYTES // 4 + 1] = np.inf
    with pytest.raises(WireError, match=rf"stage 1\), from byte {CHUNK_BYTES} on: a value that is not finite"):
        carried("blockwise8", spoilt)


@pytest.mark.parametrize(
    ("note", "says"),
    [
        (["chunks", "float32", [5], []], f"would not be cut so .bytes: 20, from {CHUNK_BYTES + 1} to"),
        (["chunks", "float32", [1 << 40], []], "too many bytes|too large"),
        (["chunks", "float33", [1 << 20], []], "unknown dtype"),
    ],
)
def test_a_layout_that_would_not_be_cut_is_refused_before_memory_is_taken(note, says):
    with pytest.raises(WireError, match=says):
        allocate_tensor(note)


def test_another_chunk_than_was_due_is_refused_with_both():
    first, second = cut(Block.of(np.zeros(CHUNK_BYTES // 4 + 1, np.float32)))
    with pytest.raises(WireError, match=r"due: float32 \(1,\), came: \[\('float32', \(262144,\)\)\]"):
        fill(second, [first])
