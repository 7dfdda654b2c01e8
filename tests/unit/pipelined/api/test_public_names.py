"""The public face: every name that it lists is there."""

from dataclasses import fields
from inspect import Parameter, signature

import pytest

import pipelined as pp
from pipelined.training.job import Numerics


def test_every_public_name_can_be_had():
    assert [name for name in pp.__all__ if getattr(pp, name, None) is None] == []
    assert set(pp._HOMES) == set(pp.__all__) - {"__version__"}


@pytest.mark.parametrize("call", [pp.Trainer, pp.AsyncTrainer, pp.plan], ids=["Trainer", "AsyncTrainer", "plan"])
def test_what_a_call_takes_as_train_does_has_the_same_name_and_default(call):
    train, other = (signature(one).parameters for one in (pp.train, call))
    shared = {
        name: other[name].default for name in train if name in other and name not in ("plan", "loss", "optimizer")
    }
    assert shared == {name: train[name].default for name in shared}
    others = ("newest", "recompute_attention")  # of Ravnest, and of marked attentions
    assert {"seed", "transport", *(each.name for each in fields(Numerics) if each.name not in others)} <= shared.keys()
    assert all(other[name].kind is Parameter.KEYWORD_ONLY for name in ("loss", "optimizer"))
