"""A skip over two stages in a pipeline of ranks: the bits of one that is passed along, for fewer bytes."""

from collections import Counter
from typing import NamedTuple

import pytest
import torch
from torch import nn

import pipelined as pp
from pipelined.training.exchange.messages import StageMessages
from pipelined.training.exchange.skips import NO_SKIPS, STRAIGHT, Skips

ROWS, WIDTH, MICROBATCHES, STEPS = 8, 6, 4, 3
TENSOR = ROWS * WIDTH // MICROBATCHES
"""Numbers of what a layer gives for one microbatch."""


class Give(nn.Linear):
    def __init__(self):
        super().__init__(WIDTH, WIDTH)

    def forward(self, x):
        y = torch.tanh(super().forward(x))
        return {"h": y, "skips": [y]}


class HandOn(Give):
    def forward(self, x):
        return {**x, "h": torch.tanh(nn.Linear.forward(self, x["h"]))}


class Read(Give):
    """Reads the skip; hands it on, with a second one."""

    def forward(self, x):
        h = torch.tanh(nn.Linear.forward(self, x["h"] * x["skips"][0]))
        return {"h": h, "skips": [*x["skips"], h]}


class End(Give):
    def forward(self, x):
        return nn.Linear.forward(self, x["h"]) + sum(x["skips"])


OVER_TWO = [Give, HandOn, HandOn, End]
READ_TWICE = [Give, HandOn, Read, HandOn, End, nn.Identity]


def batches():
    generator = torch.Generator().manual_seed(7)
    return [tuple(torch.randn(2, ROWS, WIDTH, generator=generator)) for _ in range(STEPS)]


class Run(NamedTuple):
    """What a training gave, and the numbers that it sent from stage to stage: to the next one, and straight past it."""

    losses: list[float]
    state: dict[str, torch.Tensor]
    sent_on: int
    sent_straight: int


def trained(layers, **arguments):
    """Train, and count what stages send."""
    sent, send = Counter(), StageMessages.send

    async def counted(self, peer, key, *tensors, note=None):
        sent[key[0] == STRAIGHT] += sum(tensor.numel() for tensor in tensors)
        await send(self, peer, key, *tensors, note=note)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StageMessages, "send", counted)
        done = pp.train(
            pp.Sequential(layers),
            batches(),
            loss=nn.functional.mse_loss,
            optimizer=torch.optim.AdamW,
            microbatches=MICROBATCHES,
            seed=1,
            **arguments,
        )
    return Run(done.losses, done.state_dict(), sent_on=sent[False], sent_straight=sent[True])


def passed_along(layers, **arguments):
    """Train with every stage between sending the tensor on, as if no stage handed anything on unread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Skips, "of", classmethod(lambda cls, handed_on: NO_SKIPS))
        return trained(layers, **arguments)


def same_bits(one, other):
    equal = [torch.equal(value, other.state[name]) for name, value in one.state.items()]
    return one.losses == other.losses and all(equal)


EACH = STEPS * MICROBATCHES * TENSOR
"""Numbers that cross one boundary in one direction, in all steps."""
CASES = [
    ("gpipe", {}),
    ("one_f_one_b", {}),
    ("zb_h1", {}),
    ("chimera", {}),
    ("dualpipe_v", {}),
    ("interleaved", {"chunks": 2}),
    ("pipedream_2bw", {}),
    ("gpipe", {"recompute": True}),
    ("one_f_one_b", {"width": 2}),
    ("one_f_one_b", {"compress": "bf16"}),
]


@pytest.mark.in_turns(6)
@pytest.mark.parametrize(("schedule", "more"), CASES)
def test_it_changes_no_bit_and_sends_the_tensor_once_each_way(schedule, more):
    straight, along = (train(OVER_TWO, schedule=schedule, depth=4, **more) for train in (trained, passed_along))
    assert same_bits(straight, along)
    assert (straight.sent_on, straight.sent_straight) == (2 * 3 * EACH, 2 * EACH)
    assert (along.sent_on, along.sent_straight) == (2 * 6 * EACH, 0)


@pytest.mark.parametrize("schedule", ["one_f_one_b", "zb_v"])
def test_what_a_stage_reads_and_hands_on_goes_from_reader_to_reader(schedule):
    straight, along = (train(READ_TWICE, schedule=schedule, depth=6) for train in (trained, passed_along))
    assert same_bits(straight, along)
    to_stage_2, both_to_stage_4 = EACH, 2 * EACH
    assert (straight.sent_on, straight.sent_straight) == (2 * 5 * EACH, 2 * (to_stage_2 + both_to_stage_4))


@pytest.mark.parametrize(("schedule", "width"), [("one_f_one_b", 1), ("chimera", 1), ("gpipe", 2)])
@pytest.mark.parametrize("layers", [OVER_TWO, READ_TWICE])
def test_a_step_sends_the_bytes_that_were_planned(schedule, width, layers):
    plan = pp.Plan(schedule, depth=4, width=width, microbatch_size=2, microbatches=4 // width)
    with pp.Trainer(
        pp.Sequential(layers), plan, loss=nn.functional.mse_loss, optimizer=torch.optim.AdamW, all_reduce="ring"
    ) as trainer:
        for batch in batches():
            planned = trainer.planned_bytes(batch)
            sent = trainer.step(batch).nbytes
    assert sent == planned


def test_a_layer_that_reads_what_it_handed_on_for_the_example_is_refused():
    class Sometimes(HandOn):
        def forward(self, x):
            if x["h"].is_meta:
                return super().forward(x)
            return {**super().forward(x), "sum": x["skips"][0] + 1}

    row = [Give, HandOn, Sometimes, End]
    remedy = "let it read the tensor for the inputs of every microbatch, or of none"
    with pytest.raises(pp.UsageError, match=remedy):
        trained(row, schedule="gpipe", depth=4)
