"""The report of a process on itself fits a frame, however many peers it has and however long their names are."""

import pytest

from pipelined.membership.messaging.fields import MAX_NAME
from pipelined.process.reporting.events import MAX_TEXT, Event
from pipelined.swarm.protocol.status import (
    MAX_EVENTS,
    EndpointTraffic,
    LeaderReport,
    StatusReply,
    TrainerReport,
    largest,
)
from transports import Block
from transports.wire.frames import WireLimits, pack_header

EVENTS = tuple(Event(float(at), 20, "peer evicted", dict.fromkeys("ab", "w" * MAX_TEXT)) for at in range(MAX_EVENTS))
LEADS = LeaderReport(1, 1, "counting", 1, "w" * MAX_TEXT)
TRAFFIC = EndpointTraffic(1 << 60, 1 << 60, {}, {})


@pytest.mark.parametrize("letter", ["n", "\u00fc", "\U0001f40d"])
@pytest.mark.parametrize("length", [4, 30, 64, MAX_NAME])
def test_a_report_on_thousands_of_peers_fits_a_frame(length, letter):
    numbers = {f"{at:04}".ljust(length, letter): (1 << 40) + at for at in range(4096)}
    banned = {name: float(number) for name, number in numbers.items()}
    report = TrainerReport(1, 1.0, largest(numbers), largest(banned), LEADS)
    response = StatusReply(False, TRAFFIC, trainer=report, events=EVENTS).response()
    assert len(pack_header((), list(map(Block.of, response.blocks)), response.note)) < WireLimits().header
    assert StatusReply.parse(response.note, ()).trainer == report


def test_the_peers_with_the_largest_numbers_are_reported():
    numbers = {f"{at:04}": at for at in range(4096)}
    reported = largest(numbers)
    assert 100 < len(reported) < len(numbers)
    assert min(reported.values()) == len(numbers) - len(reported)
