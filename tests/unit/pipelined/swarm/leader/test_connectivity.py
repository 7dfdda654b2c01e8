"""Which members withhold their part of a sum, from the replies of all."""

import pytest

from pipelined.swarm.leader.connectivity import overdue
from pipelined.swarm.protocol.rounds import RoundReport


def said(parts=(), totals=()):
    return RoundReport((), dict(parts), dict(totals))


@pytest.mark.parametrize(
    "all_say, waits",
    [
        ({"a": said(), "b": said()}, {}),
        ({"a": said({"c": 11.0}), "b": said({"c": 11.0}), "c": said()}, {"a": "c", "b": "c"}),
        ({"a": said({"c": 9.0}), "b": said({"c": 11.0}), "c": said()}, {"b": "c"}),
        ({"a": said({}, {"b": 11.0}), "b": said({"c": 11.0}), "c": said({}, {"b": 11.0})}, {"b": "c"}),
        ({"a": said({}, {"b": 11.0}), "b": said({"c": 1.0}), "c": said()}, {}),
        ({"a": said({}, {"b": 11.0}), "b": said()}, {"a": "b"}),
        ({"a": said({}, {"b": 11.0})}, {}),
        ({"a": said({"slow": 15.0})}, {}),
        ({"a": said({"slow": 25.0})}, {"a": "slow"}),
    ],
    ids=[
        "none waits",
        "one withholds its part",
        "not for long",
        "an owner that lacks a part owes no total",
        "nor where it lacks it for a moment",
        "an owner withholds a total",
        "an owner that could not be asked",
        "a longer limit of its own",
        "over it",
    ],
)
def test_known_answers(all_say, waits):
    overdue_members = overdue(all_say, lambda name: 20.0 if name == "slow" else 10.0)
    assert {name: "".join(sorted(others)) for name, others in overdue_members.items() if others} == waits
