"""What a URL says of slow links: numbers with units, and every wrong value answered with what is allowed."""

import math

import pytest

from transports.urls import split_profile


def test_options_of_links_are_read_in_their_units_and_others_are_left():
    shape, others = split_profile("wait=60&delay=50ms&jitter=2.5ms&rate=500mbit&loss=0.01&seed=7")
    assert (shape.delay, shape.jitter) == pytest.approx((0.05, 0.0025))
    assert (shape.rate, shape.loss, shape.seed) == (62.5e6, 0.01, 7)
    assert others == {"wait": "60"}


def test_links_between_nodes_have_a_delay_and_a_rate_of_their_own():
    shape, others = split_profile("delay=1ms&rate=1gbit&loss=0.5&seed=7&node=4&far-delay=5ms&far-rate=200mbit")
    near, far = shape.between(4, 7), shape.between(3, 4)
    assert (near.delay, near.rate, far.delay, far.rate) == pytest.approx((1e-3, 1.25e8, 5e-3, 2.5e7))
    assert (near.loss, near.seed) == (far.loss, far.seed) == (0.5, 7)
    assert others == {}


def test_links_between_nodes_are_as_inside_by_default():
    shape, _ = split_profile("delay=1ms&rate=1gbit&node=2&far-rate=200mbit")
    assert (shape.between(0, 2).delay, shape.between(0, 2).rate) == pytest.approx((1e-3, 2.5e7))
    assert split_profile("delay=1ms&node=2")[0].between(0, 2) == split_profile("delay=1ms")[0]


def test_without_link_options_there_is_no_shape():
    assert split_profile("wait=60") == (None, {"wait": "60"})
    assert split_profile("") == (None, {})


@pytest.mark.parametrize(
    ("query", "field", "value"),
    [
        ("delay=100us", "delay", 1e-4),
        ("delay=.5s", "delay", 0.5),
        ("rate=1gbit", "rate", 1.25e8),
        ("delay=1ms", "rate", math.inf),
        ("line=200mbit", "line", 25e6),
        ("rate=200mbit", "line", math.inf),
        ("loss=1e-3", "loss", 0.001),
    ],
)
def test_units(query, field, value):
    assert getattr(split_profile(query)[0], field) == pytest.approx(value)


@pytest.mark.parametrize(
    ("query", "allowed"),
    [
        ("delay=50", r"a number and one of the units us, ms, s \(got: '50'\)"),
        ("delay=-5ms", r"units us, ms, s \(got: '-5ms'\)"),
        ("delay=", r"\(got: ''\)"),
        ("rate=500", "units kbit, mbit, gbit"),
        ("rate=0mbit", "more than 0"),
        ("loss=1", "a number from 0 to below 1"),
        ("loss=1%25", "a number from 0 to below 1"),
        ("loss=-1e-3", "a number from 0 to below 1"),
        ("loss=nan", "a number from 0 to below 1"),
        ("delay=1ms&delay=2ms", r"\?delay= is given 2 times in one URL \(values: 1ms, 2ms\); give it once"),
        ("seed=-1", "a whole number from 0 up"),
        ("delay=1ms&jitter=2ms", r"jitter: 0.002 s, delay: 0.001 s"),
        ("node=0", "a whole number from 1 up"),
        ("node=two", r"a whole number from 1 up \(got: 'two'\)"),
        ("far-delay=5ms", r"without nodes \(node: 0\); give the ranks of a node"),
        ("delay=2ms&jitter=2ms&node=2&far-delay=1ms", r"jitter: 0.002 s, far-delay: 0.001 s"),
    ],
)
def test_an_invalid_value_is_refused_with_the_allowed_ones(query, allowed):
    with pytest.raises(ValueError, match=allowed):
        split_profile(query)
