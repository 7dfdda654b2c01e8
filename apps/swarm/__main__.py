"""Train with a swarm of unreliable machines: `python -m apps.swarm local --peers 6 --stages 3`.

    coordinator   be the directory: who is a member, which step stands
    serve         join as a peer
    train         run a trainer
    local         all of it on this machine, with a live view
    status        show a swarm
    export        write what was trained as Hugging Face keeps models, and sample from it

The way in: read the flags, then one coroutine a process. Torch is imported only by who needs it.
"""

import asyncio
import errno
import functools
import operator
import sys
import traceback
from typing import Annotated, NoReturn

from apps.swarm.config import ChildFailed
from apps.swarm.flags import Coordinator, Export, Local, Serve, Status, Train
from pipelined import __version__
from pipelined.aio.events import last_words, log_to_stderr, printable
from pipelined.aio.watchdog import DeviceStalled
from pipelined.directory import CutOff, JournalError, WrongKey
from pipelined.errors import UsageError
from pipelined.process.exit import end_process, hush, tell
from pipelined.process.run import complaint
from transports import new_event_loop

Flags = Coordinator | Serve | Train | Local | Status | Export
DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
PROGRAM = "python -m apps.swarm"
ABOUT = f"""Train with a swarm of unreliable machines (docs/swarm.md).

All of it on this machine: {PROGRAM} local --peers 6 --stages 3

On several: a coordinator, then serve and train on as many as there are, in any order; status shows what they do.
--version shows the version."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code (0 done or asked to end, 1 failure, 2 usage, 130 interrupted)."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if "--version" in arguments:
        print(f"pipelined {__version__}")
        return DONE
    try:
        flags = parse(arguments)
        log_to_stderr(getattr(flags, "log", "warning"))
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_work(flags))
    except (UsageError, WrongKey) as error:
        tell(complaint(error, PROGRAM))
        return USAGE
    except ChildFailed as error:
        tell(complaint(error, PROGRAM))
        return USAGE if error.code == USAGE else FAILED
    except (CutOff, JournalError, DeviceStalled) as error:
        tell(complaint(error, PROGRAM))
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        hush()
    except Exception as error:
        tell("\n".join(["".join(traceback.format_exception(error)).rstrip("\n"), last_words()]))
        return FAILED
    return DONE


def parse(arguments: list[str]) -> Flags:
    """Make a command's flags of a command line.

    Raises:
        SystemExit: 0 after --help, 2 on what cannot be (tyro says what).
    """
    import tyro

    def named(kind: type, name: str) -> type:
        return Annotated[kind, tyro.conf.subcommand(name, prefix_name=False)]

    kinds = named(Coordinator, "coordinator"), named(Serve, "serve"), named(Train, "train")
    kinds += named(Local, "local"), named(Status, "status"), named(Export, "export")
    every = functools.reduce(operator.or_, kinds)
    return tyro.cli(every, args=arguments, prog=PROGRAM, description=ABOUT, config=(tyro.conf.OmitArgPrefixes,))


async def _work(flags: Flags) -> None:
    if isinstance(flags, Local):
        from apps.swarm.local import local

        return await local(flags, _say)
    if isinstance(flags, Status):
        from apps.swarm.status.command import show

        return await show(flags)
    if isinstance(flags, Export):
        from apps.swarm.export import export

        return await export(flags, _say)
    from apps.swarm import commands as _swarm_run

    match flags:
        case Coordinator():
            await _swarm_run.coordinate(flags, _say)
        case Serve():
            await _swarm_run.until_asked(_swarm_run.serve(flags, _say))
        case Train():
            await _swarm_run.until_asked(_swarm_run.train(flags, _say))


def _say(text: str) -> None:
    """Print a line; what is in it may come off the network (a name, a reason), or out of a model."""
    try:
        print(printable(text), flush=True)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        hush()  # the terminal was closed, and the signal that says so is on its way


def console() -> NoReturn:
    """The command `pipelined-swarm`: run one command and end the process with its exit code."""
    end_process(main())


if __name__ == "__main__":
    console()
