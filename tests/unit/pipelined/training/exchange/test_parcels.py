"""Several tensors between two stages: they come back as they were nested, with gradients where there are any."""

import pytest
import torch

from pipelined.errors import UsageError
from pipelined.training.exchange.parcels import open_gradients, open_tree, pack_gradients, pack_tree, tensors_of
from transports import Block, Message, WireError

CPU = torch.device("cpu")


def message_of(parcel):
    return Message(0, ("x",), tuple(map(Block.of, parcel.tensors)), parcel.note)


def received(tree, **how):
    return open_tree(message_of(pack_tree(tree, **how)), CPU, gradients=True)


def test_a_single_tensor_is_one_block_without_a_note():
    parcel = pack_tree(torch.ones(3, requires_grad=True))
    assert len(parcel.tensors) == 1 and parcel.note is None
    assert open_tree(message_of(parcel), CPU, gradients=True).requires_grad
    assert not open_tree(message_of(pack_tree(torch.arange(3))), CPU, gradients=True).requires_grad


def test_tuples_lists_dicts_and_plain_values_come_back_as_they_were():
    h, mask, ids = torch.ones(2, requires_grad=True), torch.zeros(3), torch.arange(4)
    tree = {"h": h, "more": [(mask, None), {3: ids, "scale": 0.5}], "causal": True, "empty": torch.zeros(0, 5)}
    back = received(tree)
    assert str(back) == str({**tree, "h": back["h"]}) and torch.equal(back["h"], h)
    assert [tensor.requires_grad for tensor in tensors_of(back)] == [True, False, False, False]


def test_before_it_is_recomputed_every_float_tensor_may_need_a_gradient():
    back = received((torch.ones(2), torch.arange(2)), recompute=True)
    assert [tensor.requires_grad for tensor in back] == [True, False]


def test_gradients_go_back_only_where_there_are_any():
    outputs = (torch.ones(2, requires_grad=True), torch.arange(3), torch.ones(1, requires_grad=True), torch.zeros(1))
    x = received(outputs)
    parcel = pack_gradients(x, [torch.full((2,), 3.0), None])
    assert len(parcel.tensors) == 1 and parcel.note == [0]
    ((output, gradient),) = open_gradients(message_of(parcel), outputs, CPU)
    assert output is outputs[0] and gradient.tolist() == [3.0, 3.0]


def test_one_tensor_has_a_gradient_of_zeros_where_nothing_depends_on_it_and_an_integer_one_has_none():
    assert pack_gradients(torch.ones(2, requires_grad=True), [None]).tensors[0].tolist() == [0.0, 0.0]
    assert pack_gradients(torch.arange(2), []).tensors == ()
    assert open_gradients(message_of(pack_gradients(torch.arange(2), [])), [torch.arange(2)], CPU) == []


@pytest.mark.parametrize("tree", [0.5, (), {"h": None}, (torch.ones(1), {1, 2}), [torch.ones(1), torch.float32]])
def test_anything_else_is_refused(tree):
    with pytest.raises(UsageError, match=r"without a tensor|cannot be sent"):
        pack_tree(tree)


@pytest.mark.parametrize("note", [7, "x", ["tuple", True], ["tuple", True, True, True], ["set", True], [], ["dict"]])
def test_a_note_that_does_not_fit_the_blocks_is_refused(note):
    blocks = (Block.of(torch.ones(1)), Block.of(torch.ones(1)))
    with pytest.raises(WireError):
        open_tree(Message(0, ("x",), blocks, note), CPU)


@pytest.mark.parametrize("positions", [[], [0, 1], [2], [-1], 3, ["a"]])
def test_gradients_of_other_tensors_are_refused(positions):
    with pytest.raises(WireError):
        open_gradients(Message(0, ("x",), (Block.of(torch.ones(1)),), positions), [torch.ones(1), torch.ones(1)], CPU)


@pytest.mark.parametrize("shape", [(4, 2, 3), (3,), (2, 1), ()])
def test_a_gradient_of_another_shape_is_refused(shape):
    output = torch.ones(2, 3, requires_grad=True)
    for arrived in (message_of(pack_tree(torch.ones(shape))), torch.ones(shape)):
        with pytest.raises(WireError) as refused:
            open_gradients(arrived, [output], CPU)
        assert str((2, 3)) in str(refused.value) and str(shape) in str(refused.value)
