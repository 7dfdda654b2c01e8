"""A program of several commands, from its command line to its exit code. Torch is for its commands to import."""

import asyncio
import re
import sys
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from apps.common.commands.local_processes import ChildFailed
from apps.common.exit_code import exit_code
from apps.common.flags.command_flags import names_of
from apps.common.flags.config_file import expand_config
from apps.common.flags.groups import parse_command
from pipelined import __version__
from pipelined.errors import UsageError
from pipelined.membership.directory import CutOff, DirectoryRefusal, JournalError
from pipelined.process.exit import DONE, FAILED, USAGE, print_to_stderr
from pipelined.process.refusal import error_message
from pipelined.process.reporting.events import log_to_stderr, recent_text
from transports import new_event_loop


class CommandFlags(Protocol):
    """The flags of one command."""

    def check(self) -> None:
        """Raises UsageError: the command cannot run so."""


F = TypeVar("F", bound=CommandFlags)


@dataclass(frozen=True)
class Command(Generic[F]):
    """One command of a program.

    Args:
        flags: the dataclass that makes its flags.
        run: runs it with these flags; imports what it needs, such as torch, when it is called.
    """

    flags: type[F]
    run: Callable[[F], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class CommandProgram:
    """A program.

    Args:
        name: as a user types it.
        about: the first lines of --help.
        commands: its commands by name.
        failures: its errors that one line says; of any other error the traceback is printed.
        meaningless: flags of other programs that mean nothing to this one, as fields: the reason and what to do.
    """

    name: str
    about: str
    commands: Mapping[str, Command[Any]]
    failures: tuple[type[Exception], ...]
    meaningless: Mapping[str, str] = field(default_factory=dict)

    @property
    def flag_classes(self) -> dict[str, type[CommandFlags]]:
        """The dataclass of each command's flags, by the command's name."""
        return {name: command.flags for name, command in self.commands.items()}

    def main(self, arguments: Sequence[str] | None) -> int:
        """Run one command; returns the exit code (0 done or ended by request, 1 failure, 2 usage, 130 interrupted).

        Args:
            arguments: None: those of this process.
        """
        arguments = sys.argv[1:] if arguments is None else arguments
        if "--version" in arguments:
            print(f"pipelined {__version__}")
            return DONE
        try:
            flags = self.parse(arguments)
            log_to_stderr(getattr(flags, "log", "warning"))
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self.commands[arguments[0]].run(flags))
        except ChildFailed as error:
            return USAGE if error.code == USAGE else self._refuse(error, FAILED)  # a refusal is printed by the child
        except (Exception, KeyboardInterrupt) as error:
            if isinstance(error, (CutOff, JournalError, *self.failures)):
                return self._refuse(error, USAGE if isinstance(error, DirectoryRefusal) else FAILED)
            remedy = "free memory, or raise the limit (ulimit -v)"
            code = exit_code(error, lambda refusal: self._refuse(refusal, USAGE), remedy)
            if code is None:
                print_to_stderr("\n".join(["".join(traceback.format_exception(error)).rstrip("\n"), recent_text()]))
            return FAILED if code is None else code
        return DONE

    def parse(self, arguments: Sequence[str]) -> CommandFlags:
        """Parse the command line into the flags of the command that it begins with, and check them.

        Raises:
            SystemExit: 0 after --help. UsageError: an unknown flag, or a value that cannot be.
        """
        words = self._expand_config(arguments)
        self._refuse_meaningless(words)
        flags = parse_command(self.flag_classes, words, self.name, self.about)
        flags.check()
        return flags

    def _refuse_meaningless(self, words: Sequence[str]) -> None:
        """Raises UsageError: a word is a flag of another program that this command does not have."""
        command = self.commands.get(words[0]) if words else None
        names = names_of(command.flags) if command else [*self.meaningless]
        for word in words:
            flag = word.partition("=")[0]
            name = flag.removeprefix("--").replace("-", "_")
            if flag.startswith("--") and name not in names and (reason := self.meaningless.get(name)):
                remedy = re.sub("--([a-z-]+)", lambda match: self._with_command(match[0], match[1], names), reason)
                raise UsageError(f"{flag} means nothing to {self.name}: {remedy}")

    def _with_command(self, flag: str, name: str, names: Sequence[str]) -> str:
        """A flag, with the commands that have it where it is none of these names."""
        field = name.replace("-", "_")
        commands = [command for command, kind in self.flag_classes.items() if field in names_of(kind)]
        return flag if field in names or not commands else f"{flag} (of {', '.join(commands)})"

    def _expand_config(self, arguments: Sequence[str]) -> Sequence[str]:
        """A command line with the flags of its --config after the command, if this has a file of flags."""
        command = self.commands.get(arguments[0]) if arguments else None
        names = names_of(command.flags) if command else []
        return [arguments[0], *expand_config(arguments[1:], lambda words: names)] if "config" in names else arguments

    def _refuse(self, error: BaseException, code: int) -> int:
        print_to_stderr(error_message(error, self.name))
        return code
