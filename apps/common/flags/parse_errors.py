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
FACTS = {
    r"Missing from .*?: (.*)": r"\1 must be given",
    r"Missing value for argument '(.*)'\. .*": r"\1 needs a value",
    r"invalid choice ('.*') for argument '(.*)'\. Expected one of (.*)": r"unknown \2 \1; known: \3",
    r"Error parsing (\S+): no type matching .* could be instantiated from \[(.*)\]": r"\1 cannot be \2",
    r"Unrecognized (?:or misplaced )?options: (.*)": r"unexpected words: \1",
}
"""What the parser says, and the same as a message of the project."""
HELP = " " * 9
"""How a line begins that repeats help in the parser's error."""

T = TypeVar("T")


def parse_or_refuse(program: str, parse: Callable[[], T], unknown: Mapping[str, str]) -> T:
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
        fact = _unbox(printed.getvalue())
        facts = [*unknown.values()]
        if not (unknown and fact.startswith("Unrecognized")):  # the parser's word for the same flags
            facts = [_in_our_words(fact), *facts]
        message = f"{'; '.join(facts)}; {program} --help lists the flags"
        raise (UnknownFlags(message, tuple(unknown)) if unknown else UsageError(message)) from end


def unknown_flags(form: type, words: Sequence[str], commands: Mapping[str, type]) -> dict[str, str]:
    """The flags among some words that are none of a form's.

    Args:
        commands: the forms of all commands.
    Returns: about each the commands that have it, or else the nearest flag of the form.
    """
    known = _names_in(form)
    known_names = {*known, "stages", "help", *(f"no-{name}" for name in known)}
    words_of_flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    unknown = {word: name for word in words_of_flags if (name := word[2:].replace("_", "-")) not in known_names}
    program = f"`{words[0]}` has" if commands else "there is"
    return {word: _fact(word, name, known, commands, program) for word, name in unknown.items()}


def _fact(word: str, name: str, known: Sequence[str], commands: Mapping[str, type], program: str) -> str:
    if other_commands := [command for command, form in commands.items() if name in _names_in(form)]:
        return f"{word} is a flag of {' and '.join(other_commands)}"
    return f"{program} no flag {word}, {guess(name, [f'--{name}' for name in known])}".rstrip(", ")


def _names_in(form: type) -> list[str]:
    """The flags of a form, without dashes in front."""
    return [field.name.replace("_", "-") for group in fields(form) for field in fields(get_args(group.type)[0])]


def _unbox(box: str) -> str:
    """The fact of an error that the parser printed, and the flags that it knows instead.

    Args:
        box: lines in a frame: the title, then blocks with a rule between two of them.
    """
    lines = [line.strip("╭╮╰╯│|+") for line in box.strip().splitlines()] or [""]
    content = ("" if not line.strip("─- ") else line for line in lines[1:] if not line.startswith(HELP))
    blocks = [" ".join(lines) for rule, lines in groupby(content, key=lambda line: not line) if not rule]
    fact, *known = (" ".join(block.split()) for block in blocks or [lines[0].strip("─- ")])
    fact = CHOICES.sub(_choices_text, fact.partition(" Got errors:")[0].rstrip("."))
    if match := NO_NUMBER.fullmatch(fact):
        fact = f"{match[1]} must be a {'whole ' * (match[2].lower() == 'int')}number (it is {match[3]})"
    return "; ".join([fact, *(text for text in known if text.startswith("Perhaps"))])


def _in_our_words(fact: str) -> str:
    """The fact as the project words it; one that the table does not have stays as it is."""
    for pattern, words in FACTS.items():
        fact = re.sub(f"^{pattern}$", words, fact)
    return fact


def _choices_text(match: re.Match[str]) -> str:
    """The values that a user can give, without the one of a flag that is left open."""
    values = {*re.findall(r"'([^']*)'", match[1])} - {"None"}
    return f"Expected one of {', '.join(sorted(values))}" if values else match[0]
