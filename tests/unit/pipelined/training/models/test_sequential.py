"""A row of layers: the names and values of an `nn.Sequential`, cut anywhere, and refused where it cannot train."""

import threading

import pytest
import torch
from torch import nn

from pipelined.training.job.check_model import ModelError
from pipelined.training.models.layer_builders import initial_seed, tied
from pipelined.training.models.sequential import LayeredModel, Sequential

WAIT_S = 0.1
"""Seconds for which a thread lets another one come between."""


def linear(width=4):
    return lambda: nn.Linear(4, width)


def model(layers, example=None, seed=1):
    return LayeredModel(Sequential(layers), nn.functional.mse_loss, seed, example)


def build(layered, start, stop, device="cpu"):
    return layered.build(range(start, stop), torch.float32, device, 0)


def test_a_part_has_the_names_and_the_values_of_one_process():
    layers = [linear(), nn.Tanh, linear()]
    torch.manual_seed(1)
    whole = nn.Sequential(*[layer() for layer in layers]).state_dict()
    part = build(model(layers), 2, 3)
    assert list(part.state_dict()) == ["2.weight", "2.bias"]
    assert all(torch.equal(value, whole[name]) for name, value in part.state_dict().items())


def test_building_leaves_torchs_generator_as_it_was():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    model([linear(), nn.Dropout], torch.zeros(2, 4))
    assert torch.equal(torch.get_rng_state(), before)


def test_layers_that_two_threads_build_have_the_values_that_one_thread_gives_them():
    began, ended, values = threading.Event(), threading.Event(), {}
    expected = [layer.weight for layer in Sequential([linear(), linear()]).build(1)]

    def begin():
        began.set()
        ended.wait(WAIT_S)
        return nn.Linear(4, 4)

    def second():
        values["second"] = [layer.weight for layer in Sequential([begin, linear()]).build(1)]

    def start_second():
        thread.start()
        began.wait(WAIT_S)
        return nn.Linear(4, 4)

    thread = threading.Thread(target=second)
    values["first"] = [layer.weight for layer in Sequential([linear(), start_second]).build(1)]
    ended.set()
    thread.join()
    assert all(torch.equal(*pair) for one in values.values() for pair in zip(one, expected, strict=True))


def test_a_layer_may_build_a_row_of_layers_of_its_own():
    """The outer one then draws on as if the inner one drew nothing."""

    def block():
        return nn.Sequential(nn.Linear(2, 2), *Sequential([lambda: nn.Linear(2, 3)]).build(7))

    outer, plain = Sequential([block, lambda: nn.Linear(3, 2)]).build(1), Sequential([lambda: nn.Linear(2, 3)]).build(7)
    assert torch.equal(outer[0][1].weight, plain[0].weight)
    torch.manual_seed(1)
    assert torch.equal(outer[0][0].weight, nn.Linear(2, 2).weight)
    assert torch.equal(outer[1].weight, nn.Linear(3, 2).weight)


def test_a_layer_that_is_used_twice_is_one_parameter_under_its_first_name():
    shared = nn.Linear(4, 4)
    layered = model([lambda: shared, nn.Tanh, lambda: shared])
    assert layered.tied == {"0.weight", "0.bias"}
    assert [name for name, _ in build(layered, 2, 3).named_parameters()] == ["0.weight", "0.bias"]
    assert list(layered.state_dict(dict(shared.named_parameters(prefix="0")))) == [
        "0.weight",
        "0.bias",
        "2.weight",
        "2.bias",
    ]
    part = build(layered, 0, 3)
    assert part.get_parameter("0.weight") is part.get_parameter("2.weight")


def test_costs_count_operations_and_parameters():
    assert model([linear(), nn.Tanh, linear(8)], torch.zeros(2, 4)).costs(1) == [
        1 + 20 + 2 * 4 * 4,
        1,
        1 + 40 + 2 * 4 * 8,
    ]


class Sum(nn.Module):
    def forward(self, pair):
        return pair[0] + pair[1]


class Valued(nn.Module):
    """It needs values, which the meta device has not."""

    def forward(self, x):
        return x * x.max().item()


LENGTHS = list[int]()


class Recorded(nn.Embedding):
    """It notes the length of each forward."""

    def forward(self, x):
        LENGTHS.append(x.shape[1])
        return super().forward(x)


def test_costs_count_operations_of_a_row_that_takes_several_tensors():
    pair = torch.ones(2, 4, dtype=torch.float64), torch.ones(2, 4)
    assert model([Sum, linear(2)], pair).costs(1) == [1, 1 + 10 + 2 * 4 * 2]


@pytest.mark.parametrize("name", ["", "a.b", "forward", "training"])
def test_a_name_that_no_child_of_a_module_can_have_is_refused(name):
    with pytest.raises(ModelError, match=f"{name!r} cannot name a layer"):
        model({name: linear(), "other": linear()})


def test_a_layer_may_have_the_name_of_a_method_of_a_dict():
    layered = model({"keys": linear(), "values": linear()})
    assert list(build(layered, 0, 2).state_dict()) == ["keys.weight", "keys.bias", "values.weight", "values.bias"]


def test_counting_leaves_the_statistics_of_a_batch_norm_as_they_were():
    layered = model([linear(), lambda: nn.BatchNorm1d(4)], torch.ones(2, 4))
    assert build(layered, 1, 2).get_buffer("1.num_batches_tracked") == 0


def test_inputs_that_a_layer_rejects_are_refused_where_an_example_ran_without_values():
    example, inputs = torch.ones(2, 4), torch.ones(2, 5)
    layered = model([linear(), nn.Tanh], example)
    for _ in range(2):
        with pytest.raises(ModelError, match=r"layer 0 \(.* rejected the inputs \(shape \(2, "):
            layered.check_inputs(inputs)
    layered.check_inputs(torch.cat([example, example]))
    model([linear(), nn.Tanh]).check_inputs(inputs)
    model([linear(), Valued], example).check_inputs(inputs)


@pytest.mark.parametrize("last", [nn.Tanh, lambda: Valued()], ids=["meta", "values"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64], ids=str)
def test_inputs_of_another_kind_of_dtype_than_the_example_are_refused(last, dtype):
    """On the meta device a matrix product takes any dtype."""
    example = torch.ones(2, 4)
    layered = model([linear(), last], example)
    with pytest.raises(ModelError, match=rf"inputs of {dtype} for a model with an example of torch.float32; convert"):
        layered.check_inputs(example.to(dtype))
    layered.check_inputs(example.double())
    model([linear(), last]).check_inputs(example.to(dtype))


def test_layers_that_take_any_length_refuse_none():
    layered = model([lambda: Recorded(9, 4), linear()], torch.zeros(2, 3, dtype=torch.int64))
    LENGTHS.clear()
    for rows, length in [(2, 3), (1, 3), (2, 7), (4, 7)]:
        layered.check_inputs(torch.zeros(rows, length, dtype=torch.int64))
    assert LENGTHS == [7]


def test_a_part_on_the_meta_device_has_the_same_tensors():
    layered = model([linear(), nn.Tanh, linear()])
    on_cpu, on_meta = build(layered, 0, 3).state_dict(), build(layered, 0, 3, "meta").state_dict()
    assert {name: value.shape for name, value in on_cpu.items()} == {
        name: value.shape for name, value in on_meta.items()
    }
    assert all(value.is_meta for value in on_meta.values())


class Strange(nn.Module):
    def __init__(self, output):
        super().__init__()
        self.output = output

    def forward(self, x):
        return self.output


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], "a model without layers"),
        ([nn.Linear(4, 4)], "layer 0 is a Linear that is built already"),
        ([linear(), 3], "layer 1 is a int, not a callable"),
        ([lambda: 3], "layer 0 was built as a int"),
        ([nn.Linear], "layer 0 cannot be built"),
        ([linear(), lambda: nn.Linear(5, 4)], r"layer 1 .* rejected the output of layer 0 \(shape \(2, 4\)"),
        ([lambda: nn.Embedding(4, 4)], r"layer 0 .* rejected the inputs \(shape \(2, 4\), torch.float32\)"),
        ([lambda: Strange(0.5)], "layer 0 .* gives a float without a tensor"),
        ([lambda: Strange((torch.zeros(2, 4), {1}))], "layer 0 .* gives a set, which cannot be sent to another stage"),
        ([lambda: Strange((torch.zeros(2, 4), 1)), linear()], r"layer 1 .* rejected the output of layer 0 \(shape"),
    ],
)
def test_layers_that_cannot_train_are_refused_with_their_number(layers, message):
    with pytest.raises(ModelError, match=message):
        model(layers, torch.zeros(2, 4))


def embedding():
    return nn.Embedding(7, 4)


def head():
    return nn.Linear(4, 7, bias=False)


def test_tied_layers_share_the_parameters_of_the_first_one_under_its_name():
    layered = model([tied("words", embedding), linear(), tied("words", head)])
    assert layered.tied == {"0.weight"}
    (name, weight), *_ = build(layered, 2, 3).named_parameters()
    assert name == "0.weight"
    assert torch.equal(weight, build(layered, 0, 1).get_parameter("0.weight"))


class Counted(nn.Linear):
    """A layer that counts how often it was built with values."""

    built = 0

    def __init__(self):
        super().__init__(4, 4)
        Counted.built += not self.weight.is_meta


def test_with_keyed_values_a_rank_builds_its_own_layers_alone_and_any_rank_the_same():
    layered = LayeredModel(
        Sequential([Counted, nn.Tanh, Counted], "keyed"), nn.functional.mse_loss, 1, torch.zeros(2, 4)
    )
    before = Counted.built
    part = build(layered, 2, 3)
    assert Counted.built == before + 1
    torch.manual_seed(initial_seed(1, "2"))
    assert torch.equal(part.get_parameter("2.weight"), nn.Linear(4, 4).weight)


@pytest.mark.parametrize(
    ("layers", "initial", "message"),
    [
        ([tied("words", embedding), linear()], "ordered", "layer 0 alone is tied as 'words'; tie another layer"),
        ([tied("a", embedding), tied("a", nn.Tanh)], "ordered", "layers 0 and 1 are tied and have no parameter of the"),
        (
            [tied("a", linear()), tied("a", linear(5))],
            "keyed",
            r"weight is tied .*\(4, 4\), layer 1: \(5, 4\)",
        ),
        ([tied("a", nn.Linear(4, 4)), linear()], "ordered", "layer 0 is a Linear that is built already"),
        ([linear()], "sorted", "initial is 'sorted'; choose 'ordered' or 'keyed'"),
        (nn.Sequential(nn.Linear(4, 4)), "keyed", "an nn.Sequential has its values already"),
        ([lambda: nn.Linear(int(torch.ones(1).item()), 4)], "keyed", 'on the meta device.* leave out initial="keyed"'),
    ],
)
def test_layers_that_cannot_be_tied_or_keyed_are_refused(layers, initial, message):
    with pytest.raises(ModelError, match=message):
        LayeredModel(Sequential(layers, initial), nn.functional.mse_loss, 1)


class Halted(nn.Linear):
    """A layer whose hook makes the gradient of its weight 0."""

    def __init__(self):
        super().__init__(4, 4)
        self.weight.register_hook(torch.zeros_like)


@pytest.mark.parametrize("layers", [[Halted], nn.Sequential(Halted())], ids=["built", "given"])
def test_the_hooks_of_parameters_are_those_of_the_users_layers(layers):
    part = build(model(layers), 0, 1)
    part(torch.ones(2, 4)).sum().backward()
    assert part.get_parameter("0.weight").grad.eq(0).all()
    assert part.get_parameter("0.bias").grad.eq(2).all()
