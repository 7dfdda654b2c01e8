"""The convolution over p0·p1·p2 ranks against torch, its bytes against the closed form."""

import pytest
from torch.nn import functional

from pipelined.sharding.operators.convolution import SplitConvolution, convolve
from pipelined.sharding.operators.matmul import SplitMatmul
from tests.unit.pipelined.sharding.operators.ranks import beside, closed_form, normal, triples


def run(operator, shape, inputs=None):
    """One convolution with a bias; returns the bytes that each rank sent in both directions."""
    settings = operator.stride, operator.padding, operator.dilation
    weight, bias = normal(*operator.weight.lengths, seed=1), normal(operator.outputs, seed=2)
    return beside(
        operator.mesh.size,
        lambda tape, x, w, b: convolve(tape, operator, x, w, b),
        lambda x, w, b: functional.conv2d(x, w, b, *settings),
        operator.stream_shards(operator.output_shape(shape)),
        [(normal(*shape), inputs or operator.stream_shards(shape))],
        [(weight, operator.weight), (bias, operator.bias)],
    )


def of(factors, inputs, outputs, stride=(1, 1), padding=(1, 1), dilation=(1, 1)):
    return SplitConvolution(factors, inputs, outputs, (3, 3), stride, padding, dilation)


@pytest.mark.parametrize("factors", triples(12, always=(6,)))
def test_every_split_of_twelve_ranks_convolves(factors):
    """Images and channels that do not divide."""
    run(of(factors, 13, 17), (13, 13, 3, 4))


@pytest.mark.parametrize("more", [{"stride": (2, 1)}, {"padding": (0, 2)}, {"dilation": (1, 2)}, {"padding": "same"}])
def test_strides_paddings_and_dilations_are_torchs(more):
    run(of((1, 2, 2), 4, 6, **more), (2, 4, 6, 7))


def test_ranks_without_an_image_take_part_in_the_moves():
    run(of((3, 2, 1), 2, 4), (2, 2, 3, 3))


@pytest.mark.parametrize("factors", triples(8, always=(8,)))
def test_even_sizes_send_what_the_closed_form_says(factors):
    """As a multiplication with the images' places as rows: I numbers a place before it and O after."""
    p0, p1, p2 = factors
    channels = 2 * p1 * p2, 3 * p1 * p2
    forward, backward, _ = closed_form(SplitMatmul(factors, channels[:1], channels[1:]), p0 * 2 * 3 * 4)
    assert run(of(factors, *channels), (p0 * 2, channels[0], 3, 4)) == [8 * (forward + backward)] * (p0 * p1 * p2)
