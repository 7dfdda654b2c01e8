"""Layouts of a GPT-2 by name and by factors, and what is no layout."""

import pytest

from apps.common.lm.sharded.layouts import factors_of, layout_text, require_fitting, states_of
from pipelined.errors import UsageError


def test_data_parallelism_splits_rows_and_megatron_columns_then_the_contraction():
    assert set(factors_of("data", 4).values()) == {(4, 1, 1)}
    assert factors_of("megatron", 4) == {
        "c_attn": (1, 4, 1),
        "attn.c_proj": (1, 1, 4),
        "c_fc": (1, 4, 1),
        "mlp.c_proj": (1, 1, 4),
        "wte": (1, 4, 1),
    }


def test_factors_are_read_by_operator_and_the_vocabulary_is_split_by_default():
    found = factors_of("c_attn=1.2.2,attn.c_proj=2.2.1,c_fc=1.4.1,mlp.c_proj=1.1.4", 4)
    assert found["c_attn"] == (1, 2, 2) and found["attn.c_proj"] == (2, 2, 1) and found["wte"] == (1, 4, 1)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (
            "rows",
            "no layout: 'rows'.*write data or zero1 or zero2 or zero3 or summa or megatron, or OPERATOR=ROWS",
        ),
        ("c_attn=1.2", "no layout: 'c_attn=1.2'"),
        ("c_attn=0.2.2", "no layout: 'c_attn=0.2.2'"),
        ("head=1.2.1", "no layout: 'head=1.2.1'"),
        ("c_attn=1.2.1,c_attn=1.2.1", "an operator is named twice"),
        ("c_attn=1.2.1,c_fc=1.2.1", "no factors of attn.c_proj, mlp.c_proj"),
        (
            "c_attn=1.2.2,attn.c_proj=1.1.2,c_fc=1.2.1,mlp.c_proj=1.1.2",
            r"c_attn=1.2.2 is for 4 ranks \(ranks of a worker: 2\)",
        ),
    ],
)
def test_what_is_no_layout_is_refused(layout, message):
    with pytest.raises(UsageError, match=message):
        factors_of(layout, 2)


def test_more_shards_than_heads_or_sequences_are_refused():
    with pytest.raises(UsageError, match=r"more column shards than heads \(c_attn, shards: 4, heads: 3\)"):
        require_fitting(factors_of("megatron", 4), heads=3)
    with pytest.raises(UsageError, match=r"more row shards than sequences .*\(c_attn, shards: 4, sequences: 3\)"):
        require_fitting(factors_of("data", 4), heads=1, rows=3)
    require_fitting(factors_of("data", 4), heads=1, rows=4)


def test_states_are_read_by_operator_beside_the_factors():
    text = "c_attn=4.1.1+zero3,attn.c_proj=2.2.1+zero1,c_fc=1.4.1,mlp.c_proj=2.1.2+zero2,wte=1.4.1"
    states = {"c_attn": "zero3", "attn.c_proj": "zero1", "c_fc": "none", "mlp.c_proj": "zero2", "wte": "none"}
    assert states_of(text) == states and layout_text(factors_of(text, 4), states) == text
    assert set(states_of("summa").values()) == {"zero3"} and set(states_of("megatron").values()) == {"none"}
    with pytest.raises(
        UsageError, match=r"no state 'zero5' \(layout: 'c_fc=1.4.1\+zero5'\); write zero1, zero2, zero3"
    ):
        states_of("c_fc=1.4.1+zero5")


@pytest.mark.parametrize("layout", ["megatron+zero1", "data+zero5", "zero1+zero3"])
def test_a_state_after_the_name_of_a_layout_is_refused(layout):
    with pytest.raises(UsageError, match=r"no state after the name of a layout .*OPERATOR=.*\+STATE"):
        factors_of(layout, 4)
