"""A command line of a dataclass of flags: its groups and its help."""

from collections import Counter

import pytest

from apps.common.flags.groups import GROUPS, SCHEDULE, form_of
from apps.gpt2.__main__ import main as gpt2
from apps.gpt2.config import GPT2Flags, parse
from apps.llama.__main__ import start as llama
from apps.ravnest.__main__ import COMMANDS as RAVNEST
from apps.ravnest.__main__ import main as ravnest
from apps.swarm.__main__ import COMMANDS as SWARM
from apps.swarm.__main__ import main as swarm
from tests.docs.command_line import KINDS as TABLES

KINDS = [*TABLES.values()]
COMMANDS = [
    (gpt2, []),
    (llama, []),
    (llama, ["generate"]),
    *((swarm, [name]) for name in SWARM.commands),
    *((ravnest, [name]) for name in RAVNEST.commands),
]
"""Every program, and the word of the command."""


def help_of(program, words, capsys):
    with pytest.raises(SystemExit) as ended:
        program([*words, "--help"])
    assert not ended.value.code
    return capsys.readouterr().out


def names_of_form(kind):
    groups = form_of(kind).__dataclass_fields__
    return [name for group in groups.values() for name in group.type.__origin__.__dataclass_fields__]


def test_every_flag_of_every_program_stands_in_one_group_and_the_table_has_no_other():
    listed = Counter(name for names in GROUPS.values() for name in names)
    assert {*listed.values()} == {1}
    assert {name for kind in KINDS for name in names_of_form(kind)} == {*listed}


def test_help_shows_each_flag_once_below_its_group_and_defaults_in_words(capsys):
    shown = help_of(gpt2, [], capsys)
    places = [shown.index(f" {group} options ") for group in GROUPS if f" {group} options " in shown]
    assert len(places) > 8 and places == sorted(places)
    start, end = (shown.index(f" {group} options ") for group in (SCHEDULE, "optimizer"))
    assert start < shown.index("--width COUNT") < shown.index("--pipes COUNT") < end
    assert shown.count(" --width ") == 1 and "(default: off)" in shown and "(default: 600)" in shown


@pytest.mark.parametrize(("program", "words"), COMMANDS)
def test_no_help_shows_a_default_or_a_type_of_python(program, words, capsys):
    shown = help_of(program, words, capsys)
    assert not [text for text in ("None", "False", "STR", "INT", "FLOAT", "''", "(default: )") if text in shown]


def test_a_flag_keeps_the_default_that_it_is_given():
    form = form_of(GPT2Flags, GPT2Flags(width=4))
    plan = form.__dataclass_fields__[SCHEDULE.replace(" ", "_")].type.__origin__
    assert plan().width == 4 and plan().depth is None


def test_the_parser_reads_no_source_for_the_help_of_a_flag(monkeypatch):
    """It has it already; to look for it took 40 percent of the time of every command line, on every rank."""
    looked = []
    monkeypatch.setattr("tyro._docstrings.get_class_tokenization_with_field", lambda kind, name: looked.append(name))
    parse(["--steps", "3"])
    assert not looked
