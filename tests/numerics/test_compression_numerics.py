"""Training through a codec: lossless ones change no bit, lossy ones only what the cut of the model says."""

import pytest

from tests.numerics.plain import Case
from tests.numerics.trained import on_every_rank

ONE = Case("one_f_one_b", 4, 1, 4)
CASES = [Case("chimera", 4, 1, 4), Case("interleaved", 4, 1, 4, chunks=2), Case("zb_v", 4, 1, 4)]


def losses(case, codec, steps=range(5)):
    """The losses of these steps, which are the same on every rank."""

    async def train(trainer, transport):
        return [(await trainer.step(step)).loss for step in steps]

    (first, *others) = on_every_rank(case, train, compress=codec)
    assert all(other == first for other in others)
    return first


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("case", [ONE, *CASES], ids=lambda case: case.schedule)
def test_a_lossless_codec_leaves_every_loss_as_it_was(case):
    assert losses(case, "zstd") == losses(case, "none")


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("codec", ["blockwise8", "fp16", "bf16"])
def test_a_lossy_codec_learns_one_batch_nearly_as_well(codec):
    plain, coded = (losses(ONE, name, steps=[1] * 25) for name in ("none", codec))
    assert coded != plain
    assert plain[-1] < 0.9 * plain[0]
    assert coded == pytest.approx(plain, rel=0.02)


def test_what_a_lossy_codec_does_depends_on_the_cut_alone():
    """Two stages a rank, and pipes both ways, give the losses of one stage a rank but for rounding."""
    plain, coded = losses(ONE, "none"), losses(ONE, "blockwise8")
    assert coded != pytest.approx(plain, rel=1e-5)
    for case in CASES:
        assert losses(case, "blockwise8") == pytest.approx(coded, rel=1e-6)
