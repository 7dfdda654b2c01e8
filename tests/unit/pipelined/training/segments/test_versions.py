"""Weights in versions: what was lent never changes, and a copy is made only where somebody needs the old values."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pipelined.programs.plan import Plan
from pipelined.training.parameters import fill_bucket
from pipelined.training.segments.versioned_stage import VersionedStage
from pipelined.training.segments.versions import Versions

SHAPES = {"matrix": (3, 2), "bias": (2,)}


def versions(kept=0, rate=0.5):
    parameters = {name: nn.Parameter(torch.ones(shape, dtype=torch.float64)) for name, shape in SHAPES.items()}
    bucket = fill_bucket(Plan("gpipe", 1, 1, 1, 1), (0,), parameters)
    return Versions(bucket, torch.optim.SGD(parameters.values(), lr=rate), kept)


def ones(versions):
    return torch.ones_like(versions.bucket.gradient)


def value(leaves):
    """The one number that all elements have."""
    (number,) = {float(x) for leaf in leaves.values() for x in leaf.detach().flatten()}
    return number


@settings(max_examples=60)
@given(st.lists(st.sampled_from(["lend", "give back", "update"]), max_size=30), st.integers(0, 2))
def test_what_is_lent_keeps_its_values(actions, kept):
    """Version v of these weights is 1 - v/2, as every gradient is 1 and the rate 1/2."""
    held, lent = versions(kept), []
    for action in actions:
        if action == "lend":
            number = held.newest - min(kept, held.newest)
            lent.append((number, held.lend(number)))
        elif action == "update":
            held.update(ones(held), rate=0.5)
        elif lent:
            held.give_back(lent.pop(0)[0])
        assert all(value(leaves) == 1 - number / 2 for number, leaves in lent)
        assert value(held.bucket.parameters) == 1 - held.newest / 2


def test_an_update_writes_over_what_nobody_uses_and_beside_what_somebody_does():
    held = versions()
    where = held.bucket.parameters["matrix"].data_ptr
    first = where()
    held.lend(0)
    held.give_back(0)
    held.update(ones(held), rate=0.5)
    assert where() == first
    lent = held.lend(1)
    assert lent["matrix"].data_ptr() == first, "lending copies nothing"
    held.update(ones(held), rate=0.5)
    assert where() != first and lent["matrix"].data_ptr() == first


def test_gradients_of_all_versions_add_up_in_the_bucket():
    held = versions()
    old = held.lend(0)
    loss = (old["matrix"] ** 2).sum() + old["bias"].sum()
    held.update(ones(held), rate=0.5)
    new = held.lend(1)
    loss.backward()
    (new["matrix"] ** 2).sum().backward()
    assert held.bucket.gradient.tolist() == [2.0 + 1.0] * 6 + [1.0] * 2
    assert held.collect().tolist() == [3.0] * 6 + [1.0] * 2
    assert not held.bucket.gradient.any()


def test_a_kept_version_lives_through_a_new_beginning_and_a_checkpoint():
    held = versions(kept=1)
    for _ in range(3):
        held.update(ones(held), rate=0.5)
    held.begin()
    assert held.newest == 0 and held.oldest == -1
    assert value(held.lend(-1)) == 0.0 and value(held.lend(0)) == -0.5
    other = versions(kept=1)
    other.restore(
        {number: {n: x.detach().clone() for n, x in leaves.items()} for number, leaves in held.older().items()}
    )
    assert other.oldest == -1 and value(other.lend(-1)) == 0.0


@pytest.mark.parametrize("frozen", SHAPES)
def test_a_parameter_that_was_frozen_when_it_was_saved_has_one_value_in_all_versions(frozen):
    """The fields of the first parameter were taken for those of all: an error, or older versions lost in silence."""
    held = versions(kept=1)
    state = {name: {"value": torch.full(shape, 3.0)} for name, shape in SHAPES.items()}
    for name in state.keys() - {frozen}:
        state[name]["version-1"] = torch.full(SHAPES[name], 2.0)
    VersionedStage(None, None, {(0,): held}).restore(state)
    leaves = held.lend(-1)
    assert {name: float(leaf.detach().flatten()[0]) for name, leaf in leaves.items()} == {
        name: 3.0 if name == frozen else 2.0 for name in SHAPES
    }


def test_versions_that_nobody_will_use_are_gone():
    held = versions()
    held.lend(0)
    held.update(ones(held), rate=0.5)
    assert set(held.older()) == {-1}
    held.give_back(0)
    assert not held.older()
    with pytest.raises(KeyError):
        held.lend(0)
