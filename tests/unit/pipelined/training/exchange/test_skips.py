"""Tensors that go past stages: who sends which to whom, and what each stage takes and gives."""

import pytest
import torch

from pipelined.errors import UsageError
from pipelined.programs.addresses import Activation, Gradient
from pipelined.training.exchange.parcels import Elsewhere, Parcel, open_tree, pack_gradients, pack_tree
from pipelined.training.exchange.skips import Skip, Skips, key_between
from transports import Block, Message, WireError

CPU = torch.device("cpu")
OVER_TWO = Skips.of([{1: 1}, {1: 1}])
"""Of four stages that give pairs the two in the middle hand on the second tensor."""


def message_of(parcel):
    return Message(0, ("x",), tuple(map(Block.of, parcel.tensors)), parcel.note)


def test_a_tensor_goes_from_the_stage_that_gives_it_to_the_one_that_reads_it():
    assert OVER_TWO.skips == (Skip(0, 1, 3, 1),)
    assert (OVER_TWO.readers(0), OVER_TWO.givers(3)) == ([3], [0])
    assert [OVER_TWO.readers(stage) + OVER_TWO.givers(stage) for stage in (1, 2)] == [[], []]


def test_a_stage_that_reads_a_tensor_and_hands_it_on_is_its_reader_and_gives_it_again():
    assert Skips.of([{1: 1}, {}, {1: 0}]).skips == (Skip(0, 1, 2, 1), Skip(2, 1, 4, 0))


def test_skips_nest_and_change_their_places():
    skips = Skips.of([{0: 1}, {0: 0, 1: 1}, {1: 0}]).skips
    assert skips == (Skip(0, 0, 4, 0), Skip(1, 0, 3, 0))


@pytest.mark.parametrize("handed_on", [[], [{}], [{}, {}]])
def test_without_tensors_that_are_handed_on_each_stage_sends_to_its_neighbours_alone(handed_on):
    skips, parcel = Skips.of(handed_on), Parcel((torch.ones(1),))
    assert skips.skips == ()
    assert skips.split_activations(0, parcel) == {1: parcel} and skips.split_gradients(1, parcel) == {0: parcel}


def test_a_tree_is_split_at_its_giver_and_joined_at_its_reader_and_so_are_the_gradients():
    h, skip = (torch.full((2,), float(n), requires_grad=True) for n in (1, 2))
    first = OVER_TWO.split_activations(0, pack_tree((h, skip)))
    assert {stage: len(parcel.tensors) for stage, parcel in first.items()} == {1: 1, 3: 1}
    x, absent = open_tree(OVER_TWO.join_activations(1, {0: message_of(first[1])}), CPU, gradients=True)
    assert isinstance(absent, Elsewhere) and torch.equal(x, h)
    last = OVER_TWO.split_activations(2, pack_tree((x * 3, absent)))
    assert [*last] == [3] and len(last[3].tensors) == 1
    tree = open_tree(
        OVER_TWO.join_activations(3, {2: message_of(last[3]), 0: message_of(first[3])}), CPU, gradients=True
    )
    assert torch.equal(tree[0], 3 * h) and torch.equal(tree[1], skip) and tree[1].requires_grad
    back = OVER_TWO.split_gradients(3, pack_gradients(tree, [torch.zeros(2), torch.ones(2)]))
    assert {stage: parcel.note for stage, parcel in back.items()} == {2: [0], 0: [1]}
    assert pack_gradients((x, absent), [torch.zeros(2)]).note == [0]
    whole = OVER_TWO.join_gradients(0, {3: message_of(back[0]), 1: message_of(Parcel((torch.full((2,), 5.0),), [0]))})
    assert whole.note == [0, 1] and whole.blocks[0].torch().tolist() == [5.0, 5.0]


def test_the_gradient_of_a_tree_of_one_tensor_goes_straight_back_too():
    skips = Skips.of([{1: 1}, {1: 0}])
    tensor = torch.ones(2, requires_grad=True)
    back = skips.split_gradients(3, pack_gradients(tensor, [torch.ones(2)]))
    assert {stage: parcel.note for stage, parcel in back.items()} == {2: [], 0: [1]}


@pytest.mark.parametrize(
    "use", [lambda x: torch.ones(1) + x, torch.relu, len, lambda x: x.shape, lambda x: x * 2, lambda x: x[0]]
)
def test_a_layer_cannot_read_what_is_elsewhere(use):
    with pytest.raises(UsageError, match=r"let it read the tensor for the inputs of every microbatch"):
        use(Elsewhere())


STRAIGHT = Parcel((torch.ones(1),), ["tuple", True])


@pytest.mark.parametrize(
    "near, straight",
    [
        (Parcel((torch.ones(1),), ["tuple", True, ["elsewhere"]]), Parcel((torch.ones(1),))),
        (Parcel((torch.ones(1),), ["tuple", True, ["elsewhere"]]), Parcel((), ["tuple"])),
        (Parcel((torch.ones(1),), ["tuple", True, ["elsewhere"]]), Parcel((torch.ones(1),), ["tuple", "x"])),
        (Parcel((), ["tuple", True, ["elsewhere"]]), STRAIGHT),
        (Parcel((torch.ones(1),) * 2, ["tuple", True, ["elsewhere"]]), STRAIGHT),
        (Parcel((torch.ones(1),)), STRAIGHT),
    ],
)
def test_other_tensors_than_are_due_are_refused(near, straight):
    with pytest.raises(WireError):
        OVER_TWO.join_activations(3, {2: message_of(near), 0: message_of(straight)})


@pytest.mark.parametrize("note", [None, 3, [0, 1]])
def test_other_gradients_than_are_due_are_refused(note):
    messages = {1: message_of(Parcel((torch.ones(1),), [0])), 3: message_of(Parcel((torch.ones(1),), note))}
    with pytest.raises(WireError):
        OVER_TWO.join_gradients(0, messages)


def test_a_straight_message_names_its_stage_as_a_rank_may_hold_several():
    address, back = Activation(5, 0, 3, 7), Gradient(5, 0, 0, 7)
    assert key_between(2, address) == address.key and key_between(1, back) == back.key
    assert len({key_between(stage, address) for stage in (0, 1, 2)}) == 3
