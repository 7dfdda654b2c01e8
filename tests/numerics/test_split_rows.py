"""A user's row of layers over the ranks of a worker, beside the plain loop in float64: losses and the whole state.

The plain loop uses none of the runtime, except for the seeds of dropout (`layer_seed`).
"""

import re

import pytest
import torch
from torch import nn

import pipelined as pp
from tests.numerics.test_front_door import WIDTH, plain, row, tied_row, trained
from tests.numerics.test_front_door import require_equal as require_equal_states
from tests.numerics.trained import seed_cpu

SEED, ROWS, STEPS = 5, 12, 5


def images():
    """Convolutions with uneven channels and a stride, pooling, both norms, two dropouts in one layer, and a softmax."""
    return [
        lambda: nn.Conv2d(3, 6, 3, padding=1, bias=False),
        lambda: nn.BatchNorm2d(6, momentum=0.3),
        lambda: nn.ReLU(inplace=True),
        lambda: nn.Sequential(nn.Dropout2d(0.2), nn.Conv2d(6, 5, 3, stride=2, bias=False), nn.Dropout(0.1), nn.Tanh()),
        lambda: nn.MaxPool2d(2),
        nn.Flatten,
        lambda: nn.Linear(20, 7),
        lambda: nn.LayerNorm(7),
        lambda: nn.Linear(7, 4),
        lambda: nn.LogSoftmax(1),
    ]


def words():
    """An embedding that is tied to the last layer, and layers of sequences, one of them kept whole."""
    begin, end = (
        pp.tied("words", each) for each in (lambda: nn.Embedding(11, 6), lambda: nn.Linear(6, 11, bias=False))
    )
    return [begin, lambda: nn.Linear(6, 9), nn.GELU, lambda: nn.Linear(9, 6), Mixed, lambda: nn.LayerNorm(6), end]


class Mixed(nn.Module):
    """Mixes the tokens of a sequence; it has a buffer, too, and parameters that no table knows."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.register_buffer("decay", torch.linspace(0, 1, 6))

    def forward(self, x):
        return x + self.inner(x).cumsum(1) * self.decay


class Scaled(nn.Module):
    """An operator of a user's own, split by columns."""

    layouts = pp.Layouts("S1:ranks", "S1:ranks", {"scale": "S0:ranks"})

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(1, 2, WIDTH))

    def forward(self, x):
        return x * self.scale


class Summed(nn.Module):
    """A product over columns, each rank's a summand."""

    layouts = pp.Layouts("S1:ranks", "P:ranks", {"weight": "S1:ranks"})

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, WIDTH * WIDTH).view(WIDTH, WIDTH))

    def forward(self, x):
        return x @ self.weight.t()


class Drawing(nn.Module):
    """Draws random numbers, of all rows on every rank."""

    layouts = pp.Layouts("", "")

    def forward(self, x):
        return nn.functional.dropout(x, 0.3, self.training)


def own():
    return [lambda: nn.Linear(WIDTH, WIDTH), Scaled, nn.Tanh, Summed, Drawing, lambda: nn.Linear(WIDTH, WIDTH)]


def without_channels():
    """Rows without channels: their first dimension after the rows is pooled, too, and each row is dropped as one."""
    return [
        lambda: nn.Linear(WIDTH, WIDTH),
        lambda: nn.Dropout1d(0.3),
        lambda: nn.AvgPool1d(3, 1, 1),
        lambda: nn.Linear(WIDTH, WIDTH),
        lambda: nn.MaxPool1d(3, 1, 1),
        lambda: nn.Linear(WIDTH, WIDTH),
    ]


def without_channels_2d():
    return [lambda: nn.Conv1d(5, 5, 3, padding=1), lambda: nn.MaxPool2d(3, 1, 1)]


def images_dropped_whole():
    """Dropout3d of four dimensions takes the rows for channels: it drops each as one."""
    return [lambda: nn.Conv2d(3, 6, 3), lambda: nn.Dropout3d(0.3), nn.Flatten, lambda: nn.Linear(294, 4)]


def batches(layers):
    generator = torch.Generator().manual_seed(2)
    if layers in (images, images_dropped_whole):
        return [
            (torch.randn(ROWS, 3, 9, 9, generator=generator).double(), torch.randint(4, (ROWS,), generator=generator))
            for _ in range(STEPS)
        ]
    if layers is words:
        return [(torch.randint(11, (ROWS, 5), generator=generator),) * 2 for _ in range(STEPS)]
    shape = (ROWS, 5, 12) if layers in TOKENS else (ROWS, WIDTH)
    return [(torch.randn(shape, generator=generator).double(),) * 2 for _ in range(STEPS)]


LOSSES = {
    images: nn.functional.nll_loss,
    images_dropped_whole: nn.functional.cross_entropy,
    words: lambda x, y: nn.functional.cross_entropy(x.flatten(0, 1), y.flatten()),
    **dict.fromkeys((own, without_channels, without_channels_2d), nn.functional.mse_loss),
}
TOKENS = {without_channels_2d}
"""Rows of layers that take five tokens of a width of 12."""


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


def looped(layers, microbatches):
    """Losses and state of a loop on one process."""
    builders, model = layers(), nn.Sequential()
    torch.manual_seed(SEED)
    for build in builders:
        model.append(build().double())
    if layers is words:
        model[6].weight = model[0].weight
    optimizer, losses = adam(model.parameters()), []
    for step, (inputs, targets) in enumerate(batches(layers)):
        optimizer.zero_grad()
        total = 0.0
        for number, (x, y) in enumerate(zip(inputs.chunk(microbatches), targets.chunk(microbatches), strict=True)):
            for name, layer in model._modules.items():
                seed_cpu(pp.layer_seed(SEED, step, number, name))
                x = layer(x)
            total = total + LOSSES[layers](x, y) / microbatches
        total.backward()
        losses.append(total.item())
        optimizer.step()
    return losses, model.state_dict()


def split(layers, **arguments):
    defaults = {"loss": LOSSES[layers], "optimizer": adam, "dtype": torch.float64, "seed": SEED}
    return pp.train(layers(), batches(layers), **{**defaults, **arguments})


def require_equal(done, expected):
    """Losses to 1e-12, the state to 1e-10."""
    assert done.losses == pytest.approx(expected[0], rel=1e-12)
    require_equal_states(done, (done.losses, expected[1]), 1e-10)


@pytest.mark.in_turns(6)
@pytest.mark.parametrize(
    ("layers", "tensor", "more"),
    [
        (images, 2, {}),
        (images, 4, {"layout": "0=2.2.1,3.1=1.2.2,6=4.1.1,8=1.1.4", "recompute": True}),
        (images, 3, {"layout": "data", "width": 2, "microbatches": 1, "shard_optimizer": True}),
        pytest.param(images, 6, {"layout": "0=3.2.1,3.1=2.1.3,6=1.6.1,8=2.3.1"}, marks=pytest.mark.full),
        (images, 5, {}),
        (words, 2, {"clip": 0.0}),
        (words, 4, {"layout": "1=2.1.2,3=1.4.1", "width": 1}),
        (own, 2, {"schedule": "zb_h1"}),
        (own, 3, {}),
        (without_channels, 2, {}),
        (without_channels_2d, 2, {}),
        (images_dropped_whole, 2, {}),
        (images, 2, {"depth": 2, "schedule": "zb_h1", "recompute": True}),
        (words, 2, {"depth": 2, "schedule": "chimera", "shard_optimizer": True}),
        (images, 4, {"layout": "auto"}),
        (words, 2, {"layout": "auto", "depth": 2}),
        (own, 3, {"layout": "auto", "microbatches": 3}),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_a_split_row_trains_as_a_plain_loop_does(layers, tensor, more):
    arguments = {"microbatches": 2, **more}
    done = split(layers, tensor=tensor, **arguments)
    require_equal(done, looped(layers, arguments["microbatches"] * more.get("width", 1)))


@pytest.mark.parametrize(
    ("layers", "more"), [(row, {"width": 2}), (tied_row, {"layout": "data", "shard_optimizer": True})]
)
def test_frozen_shared_and_nested_layers_are_split_too(layers, more):
    done = trained(layers, tensor=2, microbatches=2, **more)
    require_equal(done, plain(2 * more.get("width", 1), layers=layers))


def refused(layers, **arguments):
    with pytest.raises(pp.UsageError) as ended:
        split(layers, steps=1, **arguments)
    return str(ended.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"tensor": 2, "microbatches": 12},
            r"more row shards than rows in a microbatch \(layer 4, .*2, rows: 1\)",
        ),
        ({"tensor": 2, "layout": "1=2.1.2,3=1.2.1"}, r"1=2.1.2 is for 4 ranks \(ranks of a worker: 2\)"),
        ({"tensor": 2, "layout": "2=1.2.1"}, "no layout: '2=1.2.1' .* for 0, 1, 3, 6"),
        ({"tensor": 2, "layout": "6=2.1.1"}, r"tied weights in two layouts \(0.weight: "),
        ({"tensor": 2, "schedule": "pipedream_2bw"}, "only a schedule with a flush"),
        ({"tensor": 2, "exact_sums": True}, "exact sums"),
        (
            {"tensor": 4, "microbatches": 6, "layout": "auto"},
            r"no layout splits this row over 4 ranks a worker \(layer 4 \(Mixed\), rows of a microbatch: 2\); use "
            "tensor 1 or 2, or larger microbatches",
        ),
        ({"layout": "data"}, "one rank splits nothing"),
        ({"tensor": 0}, "tensor must be at least 1"),
    ],
)
def test_impossible_splits_are_refused(arguments, message):
    assert re.search(message, refused(words, **arguments))


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
@pytest.mark.parametrize("build", [nn.Softmax, lambda: nn.Softmax(0), lambda: nn.LogSoftmax(-3)])
def test_a_softmax_over_rows_is_refused(build):
    """Each member took that of its own rows; without a dimension torch takes the rows where there are three."""

    def layers():
        return [lambda: nn.Linear(12, 12), build]

    TOKENS.add(layers)
    LOSSES[layers] = nn.functional.mse_loss
    message = r"layer 1, (Log)?Softmax\(dim=(None|0|-3)\), mixes the rows of its input \(shape: \(6, 5, 12\)\); give"
    assert re.search(message, refused(layers, tensor=2, microbatches=2))


@pytest.mark.parametrize("layout", [None, "auto"])
def test_a_convolution_of_rows_without_channels_is_refused(layout):
    """Torch takes rows of two dimensions for the channels of one image; its pieces had another shape than planned."""

    def layers():
        return [lambda: nn.Linear(12, 12), lambda: nn.Conv2d(6, 6, 3, padding=1)]

    TOKENS.add(layers)
    LOSSES[layers] = nn.functional.mse_loss
    message = r"layer 1 \(Conv2d\) takes rows for channels \(dimensions: 3, with rows: 4\); give it 4, or use tensor 1"
    assert re.search(message, refused(layers, tensor=2, microbatches=2, layout=layout))


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_a_softmax_without_a_dimension_takes_that_of_torch():
    def layers():
        return [lambda: nn.Linear(WIDTH, WIDTH), nn.Softmax, lambda: nn.Linear(WIDTH, WIDTH)]

    LOSSES[layers] = nn.functional.mse_loss
    require_equal(split(layers, tensor=2, microbatches=2), looped(layers, 2))


def test_the_run_says_which_layout_was_found(capfd):
    split(words, tensor=2, microbatches=2, steps=1, layout="auto")
    assert "layout: auto, 2 ranks a worker; 0 (Embedding) " in capfd.readouterr().err


def test_a_layer_that_draws_for_its_own_rows_alone_is_refused():
    class Noisy(nn.Module):
        def forward(self, x):
            return nn.functional.dropout(x, 0.3, self.training)

    def layers():
        return [*own(), Noisy]

    LOSSES[layers] = nn.functional.mse_loss
    assert "layer 6 (Noisy), which 2 ranks split, draws random numbers" in refused(layers, tensor=2)


def test_the_run_says_which_layers_are_kept_whole(capfd):
    split(words, tensor=2, microbatches=2, steps=1)
    said = capfd.readouterr().err
    assert "0 (Embedding) 1.2.1, 1 (Linear) 1.2.1, 3 (Linear) 1.1.2" in said
    assert "kept whole, their rows split: 4 (Mixed)" in said
