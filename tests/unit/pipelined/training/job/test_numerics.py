"""The numerics of a run are the keywords of the public calls."""

import inspect
from dataclasses import fields

import pytest
import torch

import pipelined as pp
from pipelined.errors import UsageError
from pipelined.training.job.numerics import Numerics, products_dtype

OTHERS = ("recompute_at_newest", "recompute_attention")  # of Ravnest, and of marked attentions
PLAIN = {each.name: each.default for each in fields(Numerics) if each.name not in OTHERS}


@pytest.mark.parametrize("call", [pp.train, pp.plan, pp.Trainer], ids=lambda call: call.__name__)
def test_every_public_call_has_a_keyword_for_each_with_the_same_default(call):
    given = {name: each.default for name, each in inspect.signature(call).parameters.items() if name in PLAIN}
    assert given == PLAIN | {"autocast": False, "recompute": None}  # None: a plan may set it


@pytest.mark.parametrize(
    ("given", "dtype"),
    [(False, None), (True, torch.bfloat16), (torch.bfloat16, torch.bfloat16), (torch.float16, torch.float16)],
)
def test_the_dtype_of_products_is_bfloat16_where_none_is_named(given, dtype):
    assert products_dtype(given) is dtype


def test_recomputation_of_a_part_is_a_mark_and_no_keyword():
    with pytest.raises(UsageError, match=r"recompute is 'attention', .* neither .* pp.recomputed\(layer\)"):
        Numerics(recompute="attention")


def test_a_dtype_without_gradients_is_refused():
    with pytest.raises(UsageError, match=r"dtype=torch.int64 has no gradients; give a floating-point dtype"):
        Numerics(dtype=torch.int64)


def test_a_dtype_without_products_is_refused():
    with pytest.raises(
        UsageError, match=r"autocast= must be a bool, torch.bfloat16 or torch.float16 \(got: dtype torch.int8"
    ):
        products_dtype(torch.int8)


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("compile", "inductor", "give True, which compiles by torch's default backend, inductor"),
        ("compile", 1, "give True, which"),
        ("exact_sums", "yes", "give one of these"),
        ("shard_optimizer", None, "give one of these"),
    ],
)
def test_a_switch_that_is_neither_true_nor_false_is_refused(name, value, remedy):
    with pytest.raises(UsageError, match=rf"^{name} is {value!r}, which is neither True nor False; {remedy}"):
        Numerics(**{name: value})
