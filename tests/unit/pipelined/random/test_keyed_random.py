"""Every draw is a function of its key."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelined.random.keyed_random import KeyedRandom, keyed_generator

keys = st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))


@given(keys, keys)
def test_a_mask_depends_on_its_key_alone(key, other):
    x = torch.ones(8, 16)
    mask = KeyedRandom(*key).dropout(x, 0.5, "h.0")
    assert torch.equal(mask, KeyedRandom(*key).dropout(x, 0.5, "h.0"))
    if key != other:
        assert not torch.equal(mask, KeyedRandom(*other).dropout(x, 0.5, "h.0"))
    assert not torch.equal(mask, KeyedRandom(*key).dropout(x, 0.5, "h.1"))


def test_dropout_keeps_the_mean_and_the_dtype_has_no_say_in_the_mask():
    x = torch.ones(1000, 100)
    dropped = KeyedRandom(0, 0, 0).dropout(x, 0.25, "here")
    assert abs(float(dropped.mean()) - 1.0) < 0.01
    assert torch.equal(dropped != 0, KeyedRandom(0, 0, 0).dropout(x.double(), 0.25, "here") != 0)


def test_no_dropout_is_the_identity():
    x = torch.randn(3)
    assert KeyedRandom(0, 0, 0).dropout(x, 0.0, "here") is x


def test_neighbouring_keys_are_not_correlated():
    draws = torch.stack([torch.randn(4096, generator=keyed_generator(seed, "w")) for seed in range(4)])
    assert (torch.corrcoef(draws) - torch.eye(4)).abs().max() < 0.1
