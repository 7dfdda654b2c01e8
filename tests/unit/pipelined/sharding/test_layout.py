"""Layouts: their texts, their equality, their cotangents, and texts that are refused."""

import pickle

import pytest

from pipelined.errors import UsageError
from pipelined.sharding import Layout, Mesh


@pytest.mark.parametrize(
    "text", ["B", "S0:a", "S0:a S0:b", "S0:b S0:a", "S1/3:a", "S1/3:a S1/2/5:b P:c", "Pmean:a P:b", "Pmax:a"]
)
def test_a_layout_reads_its_own_text(text):
    assert str(Layout(text)) == text and Layout(str(Layout(text))) == Layout(text)


def test_the_order_of_axes_counts_on_one_dimension_only():
    assert Layout("S1:a S0:b P:d Pmean:c") == Layout("Pmean:c S0:b P:d S1:a")
    assert hash(Layout("S1:a S0:b")) == hash(Layout("S0:b S1:a"))
    assert Layout("S0:a S0:b") != Layout("S0:b S0:a")
    assert Layout("") == Layout("B") and Layout("S1/1:a") == Layout("S1:a")


@pytest.mark.parametrize("kept", [Layout("S1/3:a P:b"), Layout("S0:b S0:a"), Mesh("a=2 b=3")], ids=str)
def test_what_comes_from_another_process_has_the_hash_of_this_one(kept):
    """Each process hashes text in its own way; the hash that a layout keeps once came along."""
    foreign = type(kept)(str(kept))
    foreign._hash += 1
    assert {pickle.loads(pickle.dumps(foreign))} == {kept}


def test_axes_of_one_rank_are_broadcast():
    assert Layout("S0:one S1/2:a").without_trivial_axes(Mesh("one=1 a=2")) == Layout("S1/2:a")
    assert Layout("P:one").without_trivial_axes(Mesh("one=1 a=2")) == Layout("B")


@pytest.mark.parametrize(
    ("text", "replicated", "cotangent"),
    [
        ("S1/3:a S0:b", "", "S1/3:a S0:b"),
        ("S0:a", "", "S0:a P:b"),
        ("S0:a", "b", "S0:a"),
        ("P:a Pmean:b", "", "B"),
        ("B", "a", "P:b"),
    ],
)
def test_the_cotangent_of_a_sum_is_broadcast_and_of_a_broadcast_is_a_sum(text, replicated, cotangent):
    assert Layout(text).cotangent(Mesh("a=2 b=3"), replicated.split()) == Layout(cotangent)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("S:a", "'S:a'.*write S0:AXIS"),
        ("Q:a", "'Q:a'"),
        ("Pmin:a", "'Pmin:a'"),
        ("S0:a S1:a", "'a' is named twice"),
        ("S0:a P:a", "'a' is named twice"),
        ("P:a Pmean:a", "'a' is named twice"),
        ("S0/0:a", "0 parts"),
        ("Pmax:a P:b", "maximum beside a sum"),
    ],
)
def test_a_text_that_is_no_layout_is_refused(text, says):
    with pytest.raises(UsageError, match=says):
        Layout(text)


def test_a_maximum_has_no_cotangent():
    with pytest.raises(UsageError, match="no backward"):
        Layout("Pmax:a").cotangent(Mesh("a=2"))
