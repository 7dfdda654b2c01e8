"""Weights in versions: what was acquired never changes, and a copy is made only where old values are in use."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pipelined.programs.plan import Plan
from pipelined.training.segments.versioned_stage import VersionedStage
from pipelined.training.segments.weight_versions import Versions
from pipelined.training.sums.bucket import fill_bucket

SHAPES = {"matrix": (3, 2), "bias": (2,)}


def versions(history=0, rate=0.5):
    parameters = {name: nn.Parameter(torch.ones(shape, dtype=torch.float64)) for name, shape in SHAPES.items()}
    bucket = fill_bucket(Plan("gpipe", 1, 1, 1, 1), (0,), parameters)
    return Versions(bucket, torch.optim.SGD(parameters.values(), lr=rate), history)


def ones(versions):
    return torch.ones_like(versions.bucket.gradient)


def value(leaves):
    """The one number that all elements have."""
    (number,) = {float(x) for leaf in leaves.values() for x in leaf.detach().flatten()}
    return number


@settings(max_examples=60)
@given(st.lists(st.sampled_from(["acquire", "release", "update"]), max_size=30), st.integers(0, 2))
def test_what_is_acquired_keeps_its_values(actions, history):
    """Version v of these weights is 1 - v/2, as every gradient is 1 and the rate 1/2."""
    held, acquired = versions(history), []
    for action in actions:
        if action == "acquire":
            number = held.newest - min(history, held.newest)
            acquired.append((number, held.acquire(number)))
        elif action == "update":
            held.update(ones(held), rate=0.5)
        elif acquired:
            held.release(acquired.pop(0)[0])
        assert all(value(leaves) == 1 - number / 2 for number, leaves in acquired)
        assert value(held.bucket.parameters) == 1 - held.newest / 2


def test_an_update_overwrites_an_unused_version_and_writes_beside_a_used_one():
    held = versions()
    where = held.bucket.parameters["matrix"].data_ptr
    first = where()
    held.acquire(0)
    held.release(0)
    held.update(ones(held), rate=0.5)
    assert where() == first
    acquired = held.acquire(1)
    assert acquired["matrix"].data_ptr() == first, "acquiring copies nothing"
    held.update(ones(held), rate=0.5)
    assert where() != first and acquired["matrix"].data_ptr() == first


def test_gradients_of_all_versions_add_up_in_the_bucket():
    held = versions()
    old = held.acquire(0)
    loss = (old["matrix"] ** 2).sum() + old["bias"].sum()
    held.update(ones(held), rate=0.5)
    new = held.acquire(1)
    loss.backward()
    (new["matrix"] ** 2).sum().backward()
    assert held.bucket.gradient.tolist() == [2.0 + 1.0] * 6 + [1.0] * 2
    assert held.collect().tolist() == [3.0] * 6 + [1.0] * 2
    assert not held.bucket.gradient.any()


def test_after_an_update_there_is_one_gradient():
    weights = versions()
    weights.update(weights.collect(), 0.5)
    kept = {parameter.grad.untyped_storage().data_ptr() for parameter in weights.bucket.parameters.values()}
    assert kept == {weights.bucket.gradient.untyped_storage().data_ptr()}


def test_a_gradient_that_is_applied_at_once_is_not_copied_and_is_zero_after_the_update():
    weights = versions()
    weights.bucket.gradient.fill_(1.0)
    gradient = weights.collect(at_once=True)
    assert gradient.data_ptr() == weights.bucket.gradient.data_ptr()
    weights.update(gradient, 0.5)
    assert value(weights.acquire(1)) == 0.5 and not weights.bucket.gradient.any()


def test_a_kept_version_lives_through_a_new_beginning_and_a_checkpoint():
    held = versions(history=1)
    for _ in range(3):
        held.update(ones(held), rate=0.5)
    held.start_segment()
    assert held.newest == 0 and held.oldest == -1
    assert value(held.acquire(-1)) == 0.0 and value(held.acquire(0)) == -0.5
    other = versions(history=1)
    other.restore(
        {number: {n: x.detach().clone() for n, x in leaves.items()} for number, leaves in held.older().items()}
    )
    assert other.oldest == -1 and value(other.acquire(-1)) == 0.0


@pytest.mark.parametrize("frozen", SHAPES)
def test_a_parameter_that_was_frozen_when_it_was_saved_has_one_value_in_all_versions(frozen):
    """The fields of the first parameter were taken for those of all: an error, or older versions lost in silence."""
    held = versions(history=1)
    state = {name: {"value": torch.full(shape, 3.0)} for name, shape in SHAPES.items()}
    for name in state.keys() - {frozen}:
        state[name]["version-1"] = torch.full(SHAPES[name], 2.0)
    VersionedStage(None, None, {(0,): held}).restore(state)
    leaves = held.acquire(-1)
    assert {name: float(leaf.detach().flatten()[0]) for name, leaf in leaves.items()} == {
        name: 3.0 if name == frozen else 2.0 for name in SHAPES
    }


def test_unused_versions_are_freed():
    held = versions()
    held.acquire(0)
    held.update(ones(held), rate=0.5)
    assert set(held.older()) == {-1}
    held.release(0)
    assert not held.older()
    with pytest.raises(KeyError):
        held.acquire(0)


def test_the_hooks_of_a_parameter_are_called_for_every_version():
    held = versions()
    held.bucket.parameters["matrix"].register_hook(lambda gradient: gradient * 3)
    for version in range(2):
        acquired = held.acquire(version)
        sum(leaf.sum() for leaf in acquired.values()).backward()
        gradients = {name: parameter.grad for name, parameter in held.bucket.parameters.items()}
        assert value({"matrix": gradients["matrix"]}) == 3 and value({"bias": gradients["bias"]}) == 1
        held.update(held.collect(), rate=0.5)
        held.release(version)
