"""Decisions are kept in the process, bounded, and written as one plain line each."""

import io
import os
import sys

import msgpack
import pytest

from pipelined.errors import UsageError
from pipelined.process.reporting import events


@pytest.fixture
def log(capsys):
    """Reads what a test logs."""
    return lambda: capsys.readouterr().err


def test_an_event_is_kept_with_its_kind_and_facts():
    events.emit("peer moved", peer="a", stage=2, share=0.5)
    last = events.recent()[-1]
    assert str(last) == "peer moved: peer=a stage=2 share=0.5"
    assert last.to_dict()["facts"] == {"peer": "a", "stage": 2, "share": 0.5}


def test_only_the_last_events_are_kept():
    for number in range(events.KEPT + 5):
        events.emit("counted", number=number)
    kept = events.recent()
    assert len(kept) == events.KEPT and kept[-1].facts["number"] == events.KEPT + 4
    assert [event.facts["number"] for event in events.recent(2)] == [events.KEPT + 3, events.KEPT + 4]
    assert events.recent(0) == []


def test_the_log_shows_events_from_its_level_up_one_line_each(log):
    events.log_to_stderr("warning")
    events.emit("peer serves", peer="a")
    events.warn("peer evicted", peer="b", why="refused the sum: unexpected part")
    assert log()[9:] == 'warning peer evicted: peer=b why="refused the sum: unexpected part"\n'


def test_a_second_call_changes_the_level_and_doubles_no_line(log):
    events.log_to_stderr("error")
    events.log_to_stderr("info")
    events.emit("peer serves", peer="a")
    assert log().count("peer serves") == 1


def test_without_a_log_nothing_is_written(log):
    events.warn("peer evicted", peer="b")
    assert log() == ""


def test_a_log_that_cannot_be_written_ends_nothing(monkeypatch):
    """As after `2>&1 | head`: the reader of the pipe has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    events.log_to_stderr("info")
    broken = io.TextIOWrapper(io.FileIO(writer, "w"), write_through=True)
    monkeypatch.setattr(sys, "stderr", broken)
    events.warn("peer evicted", peer="b")
    broken.close()
    events.warn("peer evicted", peer="c")
    assert [event.facts["peer"] for event in events.recent(2)] == ["b", "c"]


def test_an_unknown_level_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match="debug, info, warning, error"):
        events.log_to_stderr("loud")


def test_text_off_the_network_cannot_steer_a_terminal_or_forge_a_line():
    events.warn("refused record", key="peers/\x1b[2J\nlevel=error forged")
    assert str(events.recent()[-1]) == r'refused record: key="peers/\u001b[2J\nlevel=error forged"'


def test_a_long_fact_is_cut_in_its_middle_because_its_remedy_stands_at_the_end(log):
    events.log_to_stderr("warning")
    events.warn("save failed", why=f"cannot write {'/x' * 200} (disk full); choose another place für é")
    line = log()
    assert "cannot write /x/x" in line and "/x…/x" in line and line.endswith('choose another place für é"\n')


def test_long_facts_are_cut_and_strange_ones_become_text():
    events.emit("odd", text="x" * 10_000, huge=1 << 80, error=ValueError("no"), none=None)
    facts = events.recent()[-1].facts
    assert len(facts["text"]) == events.MAX_TEXT and facts["error"] == "no" and facts["none"] is None
    assert facts["huge"] == str(1 << 80)
    msgpack.packb(events.recent()[-1].to_dict())


def test_a_crash_report_ends_with_the_last_events():
    for step in range(30):
        events.emit("step committed", step=step)
    events.warn("attempt failed", step=30)
    heading, *lines = events.recent_text().splitlines()
    assert heading == "last events:" and len(lines) == events.REPORTED == 20
    assert lines[0].endswith(" step committed: step=11") and lines[-1].endswith(" attempt failed: step=30")


def test_an_event_survives_the_wire():
    events.warn("peer evicted", peer="a", stage=2, share=0.5, none=None)
    told = msgpack.unpackb(msgpack.packb(events.recent()[-1].to_dict()))
    assert events.parse_event(told) == events.recent()[-1]


NO_EVENTS = [
    None,
    [],
    {},
    {"at": "x", "kind": "k", "facts": {}},
    {"at": float("nan"), "kind": "k", "facts": {}},
    {"at": 1e300, "kind": "k", "facts": {}},
    {"at": 1, "kind": 1, "facts": {}},
    {"at": 1, "kind": "k", "facts": []},
]


@pytest.mark.parametrize("told", NO_EVENTS, ids=str)
def test_what_is_no_event_is_not_read(told):
    assert events.parse_event(told) is None


def test_of_a_hostile_event_only_short_and_harmless_text_is_read():
    facts = {f"\x1b[{at}m": "\n" * 10_000 for at in range(1000)}
    event = events.parse_event({"at": 1, "level": "critical", "kind": "x\n" * 5000, "facts": facts})
    assert len(event.facts) <= events.MAX_FACTS and len(str(event)) < 10_000
    assert str(event).isprintable()


def test_nothing_that_a_terminal_obeys_is_printed():
    assert events.sanitise("a\nb" + "c" * 300) == "a\ufffdb" + "c" * 197
