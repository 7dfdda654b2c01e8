"""An error of the parser is one message, with what the command line knows instead."""

import pytest

from apps.gpt2.__main__ import main as gpt2
from apps.gpt2.config import parse
from apps.llama.__main__ import start as llama
from apps.ravnest.__main__ import main as ravnest
from apps.swarm.__main__ import main as swarm
from pipelined.errors import UnknownFlags, UsageError


@pytest.mark.parametrize(
    ("program", "words", "facts"),
    [
        (gpt2, ["--widht", "3"], ["--widht", "--width"]),
        (gpt2, ["--width", "four"], ["--width", "'four'"]),
        (llama, ["generate"], ["--from"]),
        (swarm, ["train", "--squeeze", "x"], ["--squeeze", "bottleneck"]),
        (swarm, ["serv"], ["no command serv;", "did you mean serve?", "coordinator, serve, train"]),
        (swarm, [], ["coordinator, serve, train"]),
        (ravnest, ["plan"], ["--pool"]),
    ],
)
@pytest.mark.parametrize("boxes", [True, False], ids=["utf-8", "ascii"])
def test_an_error_of_the_parser_is_one_line_with_what_it_knows(program, words, facts, boxes, capsys, monkeypatch):
    monkeypatch.setattr("tyro._fmtlib._should_use_utf8_drawing_chars", lambda: boxes)
    assert program(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"python -m {program.__module__.removesuffix('.__main__')}") and "error: " in line
    assert "--help" in line and not [fact for fact in facts if fact not in line]
    assert not {*line} & {*"╭╮╰╯│─|"} and "---" not in line and "full helptext" not in line


@pytest.mark.parametrize(
    ("program", "words", "said"),
    [
        (llama, ["generate", "--chekpoint", "x"], "--from PATH must be given; there is no flag --chekpoint; "),
        (
            ravnest,
            ["plan", "--poool=x"],
            "--pool FILE must be given; `plan` has no flag --poool, did you mean --pool?; ",
        ),
        (
            ravnest,
            ["plan", "--no-json", "--layers", "2"],
            "--pool FILE must be given; python -m apps.ravnest plan --help lists",
        ),
        (ravnest, ["plan", "--nodes", "3"], "--pool FILE must be given; --nodes is a flag of local and train; "),
        (
            ravnest,
            ["local", "--ram", "1Q"],
            "error: --ram is a flag of serve; python -m apps.ravnest local --help",
        ),
        (
            ravnest,
            ["local", "--pol=x", "--zz"],
            "error: `local` has no flag --pol, did you mean --pool?; `local` has",
        ),
        (gpt2, ["--steps", "abc"], "error: --steps must be a whole number (it is 'abc'); python -m apps.gpt2 --help"),
        (gpt2, ["--depth", "x"], "error: --stages/--depth must be a whole number (it is 'x'); "),
        (gpt2, ["--lr"], "error: --lr needs a value; "),
        (gpt2, ["--dtype", "x"], "error: unknown --dtype 'x'; known: bfloat16, "),
        (gpt2, ["--tensor", "x"], "error: --tensor cannot be 'x'; "),
        (gpt2, ["--width", "1", "2"], "error: unexpected words: 2; "),
        (swarm, [], "error: a command must be given; known: local, "),
        (swarm, ["--slots", "3"], "error: there is no command --slots; known: local, "),
        (gpt2, ["--lr", "x"], "error: --lr must be a number (it is 'x'); "),
        (gpt2, ["--clip", "x"], "error: --clip must be a number (it is 'x'); "),
        (gpt2, ["--widht", "3"], "error: there is no flag --widht, did you mean --width?; python -m apps.gpt2 --help"),
    ],
)
def test_an_unknown_flag_is_named_with_the_nearest_or_its_command_and_a_wrong_value_too(program, words, said, capsys):
    assert program(words) == 2
    assert said in capsys.readouterr().err


def test_unknown_flags_are_an_attribute_of_the_error_and_those_of_the_schedule_are_known():
    with pytest.raises(UnknownFlags) as refused:
        parse(["--widht=3", "--depth", "2", "--stpes", "4"])
    assert refused.value.flags == ("--widht", "--stpes")
    with pytest.raises(UsageError, match="--pipes") as refused:
        parse(["--schedule", "chimera", "--pipes", "two", "--no-recompute"])
    assert not isinstance(refused.value, UnknownFlags)
