"""The command line of the GPT-2 program: what its help says of flags that may be left open."""

import pytest

from apps.gpt2.checks import check_job
from apps.gpt2.config import GPT2Flags, parse
from apps.gpt2.job import resolve
from pipelined.errors import UsageError


def test_the_help_of_an_open_flag_names_its_type_and_no_default(capsys):
    with pytest.raises(SystemExit) as ended:
        parse(["--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0 and "--width COUNT" in shown and "(default: 600)" in shown
    assert "None" not in shown and "(default: )" not in shown


def test_an_open_flag_is_parsed_as_its_type_and_shows_a_value_that_it_has(capsys):
    assert parse(["--width", "3", "--clip", "0.5"]) == GPT2Flags(width=3, clip=0.5)
    with pytest.raises(SystemExit):
        parse(["--help"], GPT2Flags(width=4))
    assert "(default: 4)" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--clip", "-1"], ["--beta1", "1"], ["--resume", "auto"], ["--listen", "tcp://h:1"]])
def test_a_value_out_of_range_is_an_error_of_the_program_and_not_of_its_parser(words):
    with pytest.raises(UsageError, match=words[0]):
        parse(words)


def test_a_compiled_model_has_whole_backwards_and_attentions():
    for flags, told in (
        ({"dropout": 0.0, "schedule": "zb_h1", "depth": 2}, "a whole backward"),
        ({"dropout": 0.0, "recompute_attention": True}, "recomputed attentions"),
    ):
        with pytest.raises(UsageError, match=told):
            check_job(resolve(GPT2Flags(compile=True, **flags), 2))


def test_presets_have_their_names_in_a_swarm_too():
    names = ("gpt2-chimera", "gpt2-medium", "gpt2-tiny", "gpt2")
    assert [parse(["--preset", name]).preset for name in names] == ["chimera", "gpt2-medium", "tiny", "gpt2"]
