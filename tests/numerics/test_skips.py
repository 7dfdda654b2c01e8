"""A skip over two stages in a pipeline of ranks: the bits of one that is passed along, for fewer bytes."""

from collections import Counter

import pytest
import torch
from torch import nn

import pipelined as pp
from pipelined.training.exchange.compression import Compression
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


@pytest.fixture
def trained(monkeypatch):
    def train(layers, skips, **arguments):
        """The losses, the parameters, and the numbers sent between stages, by whether they went straight."""
        sent = Counter()
        with monkeypatch.context() as patch:
            if not skips:
                patch.setattr(Skips, "of", classmethod(lambda cls, handed_on: NO_SKIPS))
            send = Compression.send

            async def counted(self, peer, key, *tensors, note=None):
                sent[key[0] == STRAIGHT] += sum(tensor.numel() for tensor in tensors)
                await send(self, peer, key, *tensors, note=note)

            patch.setattr(Compression, "send", counted)
            model, defaults = pp.Sequential(layers), {"loss": nn.functional.mse_loss, "optimizer": torch.optim.AdamW}
            done = pp.train(model, batches(), microbatches=MICROBATCHES, seed=1, **defaults, **arguments)
        return done.losses, done.state_dict(), sent

    return train


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


@pytest.mark.in_turns(3)
@pytest.mark.parametrize(("schedule", "more"), CASES)
def test_it_changes_no_bit_and_sends_the_tensor_once_each_way(trained, schedule, more):
    losses, state, sent = trained(OVER_TWO, True, schedule=schedule, depth=4, **more)
    along = trained(OVER_TWO, False, schedule=schedule, depth=4, **more)
    assert losses == along[0]
    assert all(torch.equal(value, along[1][name]) for name, value in state.items())
    each = STEPS * MICROBATCHES * TENSOR
    assert sent == {False: 2 * 3 * each, True: 2 * each}
    assert along[2] == {False: 2 * 6 * each}


@pytest.mark.parametrize("schedule", ["one_f_one_b", "zb_v"])
def test_what_a_stage_reads_and_hands_on_goes_from_reader_to_reader(trained, schedule):
    losses, state, sent = trained(READ_TWICE, True, schedule=schedule, depth=6)
    along = trained(READ_TWICE, False, schedule=schedule, depth=6)
    assert losses == along[0]
    assert all(torch.equal(value, along[1][name]) for name, value in state.items())
    each = STEPS * MICROBATCHES * TENSOR
    assert sent == {False: 2 * 5 * each, True: 2 * (1 + 2) * each}  # to stage 2, and both skips to stage 4


@pytest.mark.parametrize(("schedule", "width"), [("one_f_one_b", 1), ("chimera", 1), ("gpipe", 2)])
@pytest.mark.parametrize("layers", [OVER_TWO, READ_TWICE])
def test_a_step_sends_the_bytes_that_were_planned(schedule, width, layers):
    plan = pp.Plan(schedule, depth=4, width=width, microbatch=2, microbatches=4 // width)
    with pp.Trainer(
        pp.Sequential(layers), plan, loss=nn.functional.mse_loss, optimizer=torch.optim.AdamW, all_reduce="ring"
    ) as trainer:
        for batch in batches():
            planned = trainer.planned_bytes(batch)
            sent = trainer.step(batch).nbytes
    assert sent == planned


def test_a_layer_that_reads_what_it_handed_on_for_the_example_is_refused(trained, capsys):
    class Sometimes(HandOn):
        def forward(self, x):
            if x["h"].is_meta:
                return super().forward(x)
            return {**super().forward(x), "sum": x["skips"][0] + 1}

    row = [Give, HandOn, Sometimes, End]
    with pytest.raises(SystemExit) as refused:
        trained(row, True, schedule="gpipe", depth=4)
    assert refused.value.code == 2
    assert "let it read the tensor for the inputs of every microbatch, or of none" in capsys.readouterr().err
