"""What the parser prints of an error, in a box of several lines, as one message of the project. No torch."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import fields
from io import StringIO
from itertools import groupby
from typing import TypeVar, get_args

from pipelined.errors import UnknownFlags, UsageError, guess

CHOICES = re.compile(r"Expected one of \(([^)]*)\)")
NO_NUMBER = re.compile(r"Error parsing (\S+): [a-z ]+ (int|float)\b[^'|]*('.*')\]?", re.IGNORECASE)
HELP = " " * 9
"""How a line begins that repeats help in the parser's error."""

T = TypeVar("T")


def one_message(program: str, parse: Callable[[], T], unknown: Mapping[str, str]) -> T:
    """Parse; what the parser prints of an error, in a box of several lines, becomes the message of a UsageError.

    Args:
        program: with its command: its help lists the flags.
        unknown: unknown flags with a fact about each. The parser's own error hides them where another comes first.
    Raises:
        UnknownFlags: there are some.
    """
    printed = StringIO()
    try:
        with redirect_stderr(printed):
            return parse()
    except SystemExit as end:
        if not end.code:
            raise
        fact = _unboxed(printed.getvalue())
        facts = [*unknown.values()] if unknown and fact.startswith("Unrecognized") else [fact, *unknown.values()]
        message = f"{'; '.join(facts)}; {program} --help lists the flags"
        raise (UnknownFlags(message, tuple(unknown)) if unknown else UsageError(message)) from end


def unknown_of(form: type, words: Sequence[str], commands: Mapping[str, type]) -> dict[str, str]:
    """The flags among some words that are none of a form's.

    Args:
        commands: the forms of all commands.
    Returns: about each the commands that have it, or else the nearest flag of the form.
    """
    known = _names_in(form)
    own = {*known, "stages", "help", *(f"no-{name}" for name in known)}
    given = [word.partition("=")[0] for word in words if word.startswith("--")]
    unknown = {word: name for word in given if (name := word[2:].replace("_", "-")) not in own}
    program = f"`{words[0]}` has" if commands else "there is"
    return {word: _fact(word, name, known, commands, program) for word, name in unknown.items()}


def _fact(word: str, name: str, known: Sequence[str], commands: Mapping[str, type], program: str) -> str:
    if others := [command for command, form in commands.items() if name in _names_in(form)]:
        return f"{word} is a flag of {' and '.join(others)}"
    return f"{program} no flag {word}, {guess(name, [f'--{each}' for each in known])}".rstrip(", ")


def _names_in(form: type) -> list[str]:
    """The flags of a form, without dashes in front."""
    return [each.name.replace("_", "-") for group in fields(form) for each in fields(get_args(group.type)[0])]


def _unboxed(box: str) -> str:
    """The fact of an error that the parser printed, and the flags or commands that it knows instead.

    Args:
        box: lines in a frame: the title, then blocks with a rule between two of them.
    """
    lines = [line.strip("╭╮╰╯│|+") for line in box.strip().splitlines()] or [""]
    title = lines[0].strip("─- ")
    rest = ("" if not line.strip("─- ") else line for line in lines[1:] if not line.startswith(HELP))
    blocks = [" ".join(lines) for rule, lines in groupby(rest, key=lambda line: not line) if not rule]
    fact, *known = (" ".join(block.split()) for block in blocks or [""])
    fact = CHOICES.sub(_choices, fact.partition(" Got errors:")[0].rstrip("."))
    if found := NO_NUMBER.fullmatch(fact):
        fact = f"{found[1]} must be a {'whole ' * (found[2].lower() == 'int')}number (it is {found[3]})"
    known = [text for text in known if text.startswith(("Perhaps", "Available"))]
    return "; ".join([f"{title}: {fact}" if title.endswith("subcommand") else fact, *known])


def _choices(found: re.Match[str]) -> str:
    """The values that a user can give, without the one of a flag that is left open."""
    values = {*re.findall(r"'([^']*)'", found[1])} - {"None"}
    return f"Expected one of {', '.join(sorted(values))}" if values else found[0]
