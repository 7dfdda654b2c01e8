"""The pages of the swarm show what there is."""

import re

import pytest

from apps.swarm.__main__ import parse
from apps.swarm.status.prometheus import metrics
from apps.swarm.status.table import COLUMNS
from pipelined.swarm.protocol.status import LeaderReport
from pipelined.swarm.trainer.routing import Router
from tests.docs.test_command_line_document import part, rows
from tests.docs.test_documents import commands_with
from tests.launching import ROOT
from tests.unit.apps.swarm.status.test_prometheus import WHOLE
from tests.unit.pipelined.swarm.status.samples import peer, status, trainer, trainer_reply


def test_every_key_of_status_is_documented():
    text = part("### What status tells")
    told = {name for row, _ in rows(text) for name in row.split("`, `")}
    assert told == {*status().to_dict()}


def test_every_key_of_a_member_in_the_status_is_documented():
    text = part("### What status tells of a member")
    told = {name for row, _ in rows(text) for name in row.split("`, `")}
    leads = LeaderReport(left=1, unscored=0, phase="summing", attempt=1, last_failure="")
    assert told == {*peer().to_dict(), *trainer(reply=trainer_reply(leads=leads)).to_dict()}


def test_every_metric_is_there_with_its_type():
    told = dict(re.findall(r"^\| `(swarm_\w+)` \| (\w+) \|", part("### Metrics of a swarm"), re.MULTILINE))
    assert told == dict(re.findall(r"^# TYPE (\w+) (\w+)$", metrics(WHOLE), re.MULTILINE))


def test_the_columns_of_a_look_are_there():
    text = (ROOT / "docs" / "swarm.md").read_text().partition("## Status")[2].partition("\n## ")[0]
    assert " ".join(COLUMNS) in " ".join(text.split())
    told = {name for row, _ in rows(text) for name in row.split("`, `")}
    assert told == {*COLUMNS} - {"stage", "peer"}


@pytest.mark.parametrize("command", commands_with("-m apps.swarm "))
def test_every_shown_command_is_understood(command):
    words = re.split(r"-m apps\.swarm ", command)[1].split()
    if words[1:] or words[0] == "coordinator":
        parse(words)


def test_every_kind_of_event_is_there_and_no_other():
    text = (ROOT / "docs" / "swarm-operations.md").read_text().partition("## Events")[2].partition("\n## ")[0]
    sources = [path.read_text() for folder in ("pipelined", "apps") for path in (ROOT / folder).rglob("*.py")]
    kinds = {kind for source in sources for kind in re.findall(r'\b(?:emit|warn)\)?\(\s*"([a-z ]+)"', source)}
    assert {name for row, _ in rows(text) for name in row.split("`, `")} == kinds


def test_the_example_of_wiring_calls_methods_that_a_router_has():
    text = (ROOT / "docs" / "swarm-decisions.md").read_text()
    called = set(re.findall(r"wiring\.(\w+)\(", text))
    assert called and called <= {*dir(Router)}
