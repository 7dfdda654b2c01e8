"""The norm's clip and the mean are one factor; whoever trains otherwise has another digest."""

from dataclasses import fields, replace

import pytest

from pipelined.swarm.rules import Rules

RULES = Rules(model="m", stages=2, batch=8, samples=4.0, clip=1.0)


def test_without_a_clip_sums_become_means():
    assert replace(RULES, clip=0.0).scale(1e9) == 1 / 4.0


def test_a_mean_within_the_clip_stays():
    assert RULES.scale(4.0) == 1 / 4.0


@pytest.mark.parametrize("norm", [8.0, 1e6])
def test_a_mean_beyond_the_clip_gets_its_norm(norm):
    assert norm * RULES.scale(norm) == pytest.approx(RULES.clip)


@pytest.mark.parametrize("name", [each.name for each in fields(Rules)])
def test_every_rule_is_in_the_digest(name):
    value = getattr(RULES, name)
    other = replace(RULES, **{name: value + ("x" if isinstance(value, str) else 1)})
    assert other.digest != RULES.digest and replace(RULES).digest == RULES.digest
