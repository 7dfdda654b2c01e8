"""`python -m pipelined COMMAND …`: runs the command, and turns bad input into one message and exit code 2."""

import argparse
import importlib
import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from pipelined import __version__
from pipelined.errors import UsageError, as_flags, guess, usage_error_of

ABOUT = "Examine this machine, schedules and traces; plan a job; prepare tokens; run a directory."
COMMANDS = {
    "doctor": "pipelined.commands.doctor",
    "schedule": "pipelined.commands.schedule",
    "simulate": "pipelined.commands.simulate",
    "plan": "pipelined.commands.plan",
    "trace": "pipelined.commands.trace",
    "tokens": "pipelined.commands.tokens",
    "shard": "pipelined.commands.shard",
    "directory": "pipelined.commands.directory",
    "bench": "pipelined.commands.bench",
}
"""The module of each command by its name, in the order of --help. A new command gets a line here."""


class _Parser(argparse.ArgumentParser):
    """An argument parser with one-line error messages."""

    def error(self, message: str, guessed: str = "") -> NoReturn:
        if unknown := re.match("argument COMMAND: invalid choice: '(.*?)' ", message):
            guessed = guess(unknown[1], COMMANDS)
        self.exit(2, f"{self.prog}: error: {message}; {guessed}see {self.prog} --help\n")


class _Defaults(argparse.HelpFormatter):
    """Help that ends with the default of the flag, if there is one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        plain = action.default in (None, False, "", argparse.SUPPRESS)
        return action.help if plain else f"{action.help} (default: %(default)s)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns: the exit code: 0 done, 2 bad input (one message on stderr), 130 interrupted.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = " ".join(["python -m pipelined", *words[:1]])
    try:
        parser = _parser(words)
        chosen, others = parser.parse_known_args(words)
        if others and not chosen.passes_on:
            chosen.parser.error(f"unrecognized arguments: {' '.join(others)}", guess(others[0], chosen.own))
        chosen.others = others
        chosen.run(chosen)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output (`| head`) has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if (refusal := _refusal(error)) is None:
            raise
        print(f"{command}: error: {as_flags(str(refusal))}", file=sys.stderr)
        return 2
    return 0


def _refusal(error: Exception) -> UsageError | None:
    """The error as one that the user can correct; None: it is another one."""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "matplotlib":
        remedy = "pip install 'pipelined[draw]', or leave --svg and --png out"
        return UsageError(f"matplotlib is not installed; {remedy}")
    return error if isinstance(error, UsageError) else usage_error_of(error, "the command")


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of all commands; a schedule of the user's own in `words` brings its own flags.

    If `words` begin with a command, only its module is imported.
    """
    parser = _Parser("python -m pipelined", description=ABOUT)
    parser.add_argument("--version", action="version", version=f"pipelined {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in words[:1] if words and words[0] in COMMANDS else COMMANDS:
        module = importlib.import_module(COMMANDS[name])
        about = module.__doc__ or ""
        summary = about.partition("\n")[0]
        command = commands.add_parser(name, help=summary, description=about, formatter_class=_Defaults)
        module.add_arguments(command)
        if hasattr(module, "TAKES_KNOBS"):
            from pipelined.commands.flags import add_knobs

            add_knobs(command, words[1] if words[:1] == [name] and len(words) > 1 else "")
        own = tuple(command._option_string_actions)
        command.set_defaults(run=module.run, passes_on=hasattr(module, "PASSES_ON"), parser=command, own=own)
    return parser


if __name__ == "__main__":
    sys.exit(main())
