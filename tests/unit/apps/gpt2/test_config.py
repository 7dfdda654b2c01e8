"""The command line of the GPT-2 program: what its help says of flags that may be left open."""

import pytest

from apps.gpt2.config import GPT2Flags, parse


def test_the_help_of_an_open_flag_names_its_type_and_no_default(capsys):
    with pytest.raises(SystemExit) as ended:
        parse(["--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0 and "--width INT" in shown and "(default: 600)" in shown
    assert "None" not in shown and "(default: )" not in shown


def test_an_open_flag_is_parsed_as_its_type_and_shows_a_value_that_it_has(capsys):
    assert parse(["--width", "3", "--clip", "0.5"]) == GPT2Flags(width=3, clip=0.5)
    with pytest.raises(SystemExit):
        parse(["--help"], GPT2Flags(width=4))
    assert "(default: 4)" in capsys.readouterr().out
