"""Tensors between stages go through the codec and back, are counted by link, and say where they failed."""

import asyncio

import numpy as np
import pytest

from pipelined.actors.actor import Actor
from pipelined.programs.addresses import Activation, Gradient, labels_of
from pipelined.traces.tracer import Tracer
from pipelined.training.exchange.compression import LinkBytes
from pipelined.training.exchange.messages import StageMessages
from transports import WireError
from transports.local import world

KEY = Activation(step=7, pipe=0, stage=1, microbatch=3).key
VALUES = np.linspace(-1, 1, 10_000, dtype=np.float32).reshape(100, 100)


def carried(codec, tensor=VALUES, tracer=None, other=None):
    """What arrives at rank 1, and rank 0's end."""

    async def main():
        sender_end, receiver_end = world(2)
        async with Actor(sender_end) as teller, Actor(receiver_end) as listener:
            sender = StageMessages(teller, codec, tracer)
            teller.start(sender.send(1, KEY, tensor))
            frame = await StageMessages(listener, other or codec).receive(0, KEY)
        return frame, sender, sender_end.traffic

    return asyncio.run(main())


def test_without_a_codec_a_tensor_travels_as_it_is():
    frame, sender, traffic = carried("none")
    assert (frame.blocks[0].numpy() == VALUES).all() and frame.note is None
    assert traffic.bytes_to == {1: VALUES.nbytes} and sender.compression is None


@pytest.mark.parametrize(("codec", "nbytes"), [("blockwise8", 10_000 + 4 * 3), ("fp16", 20_000), ("bf16", 20_000)])
def test_the_bytes_of_each_link_are_those_of_the_closed_form(codec, nbytes):
    frame, sender, traffic = carried(codec)
    assert traffic.bytes_to == {1: nbytes} == {1: sender.compression.links[1].sent_bytes}
    assert sender.compression.links[1].tensor_bytes == VALUES.nbytes
    assert frame.blocks[0].shape == VALUES.shape and abs(frame.blocks[0].numpy() - VALUES).max() < 0.0072


def test_a_lossless_codec_gives_the_same_bits():
    frame, sender, _ = carried("zstd", np.zeros((50, 70), np.float32))
    assert frame.key == KEY and not frame.blocks[0].numpy().any() and sender.compression.links[1].sent_bytes < 100


async def test_what_travelled_over_all_links_is_reported_at_rank_0():
    transports = world(3)
    ends = [StageMessages(Actor(transport), "bf16") for transport in transports]
    ends[1].compression.links = {2: LinkBytes(4 << 20, 2 << 20), 0: LinkBytes(2 << 20, 1 << 20)}
    report, *other_reports = await asyncio.gather(*(end.report() for end in ends))
    assert report == "bf16: 3.0 of 6.0 MiB travelled between stages (50.0%), the most from rank 1 to rank 2: 2.0 MiB"
    assert other_reports == [None, None]


@pytest.mark.parametrize("codec", ["none", "bf16"])
def test_of_several_tensors_each_float_one_is_coded_by_itself(codec):
    ids = np.arange(5)
    big = np.ones((600, 1000), np.float32)  # more than one chunk

    async def main():
        sender_end, receiver_end = world(2)
        async with Actor(sender_end) as teller, Actor(receiver_end) as listener:
            teller.start(StageMessages(teller, codec).send(1, KEY, VALUES, ids, big, note=["tuple", True, False, True]))
            return await StageMessages(listener, codec).receive(0, KEY), sender_end.traffic

    message, traffic = asyncio.run(main())
    values, same_ids, same_big = (block.numpy() for block in message.blocks)
    assert message.note == ["tuple", True, False, True] and message.key == KEY
    assert (same_ids == ids).all() and (same_big == 1).all() and abs(values - VALUES).max() < 0.004
    floats = (VALUES.nbytes + big.nbytes) // (1 if codec == "none" else 2)
    assert traffic.bytes_to == {1: floats + ids.nbytes}


def test_coding_is_in_the_trace_with_its_place():
    tracer = Tracer(iter(range(100)).__next__)
    carried("blockwise8", tracer=tracer)
    events = tracer.events()
    assert events.kinds == [("send", "blockwise8")]
    assert events.coordinates.tolist() == [[7, 1, 3, 0]]


def test_values_that_cannot_be_carried_are_named_with_their_address():
    with pytest.raises(WireError, match=r"^activation of microbatch 3 \(step 7, pipe 0, stage 1\): .*not finite"):
        carried("blockwise8", np.full(5, np.nan, np.float32))


def test_a_message_that_was_not_packed_is_named_with_its_sender():
    with pytest.raises(WireError, match=r"^activation of microbatch 3 .* from rank 0: a packed message without"):
        carried("none", other="zstd")


def test_only_addresses_between_stages_have_a_place():
    assert labels_of(Gradient(1, 2, 3, 4).key) == {"step": 1, "pipe": 2, "stage": 3, "microbatch": 4}
    assert labels_of(("agree", "text")) == {}
