"""Train with a swarm of unreliable machines: `python -m apps.swarm local --peers 6 --stages 3`.

    coordinator   run the directory: the members, and the committed step
    serve         join as a peer
    train         run a trainer
    local         a whole swarm on this machine, with a live view
    status        show a swarm
    export        write the model in Hugging Face's format, and sample from it

Read the flags, then run one coroutine. Torch is imported only by the commands that compute.
"""

import asyncio
import functools
import operator
import sys
import traceback
from typing import Annotated, Any, NoReturn

from apps.common.children import ChildFailed
from apps.swarm.flags import Coordinator, Export, Local, Serve, Status, Train
from pipelined import __version__
from pipelined.aio.events import log_to_stderr, recent_text
from pipelined.directory import CutOff, JournalError, WrongKey
from pipelined.errors import UsageError
from pipelined.process.exit import end_process, print_line, print_to_stderr, silence_stdout
from pipelined.process.run import complaint
from pipelined.process.stop_request import until_stop_request
from pipelined.swarm.peer.device_watchdog import DeviceStalled
from transports import new_event_loop

Flags = Coordinator | Serve | Train | Local | Status | Export
DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
PROGRAM = "python -m apps.swarm"
ABOUT = f"""Train with a swarm of unreliable machines (docs/swarm.md).

A whole swarm on this machine: {PROGRAM} local --peers 6 --stages 3

On several machines: one coordinator, then serve and train on any number of them, in any order; status shows them.
--version shows the version."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code (0 done or ended by request, 1 failure, 2 usage, 130 interrupted)."""
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
        print_to_stderr(complaint(error, PROGRAM))
        return USAGE
    except ChildFailed as error:
        print_to_stderr(complaint(error, PROGRAM))
        return USAGE if error.code == USAGE else FAILED
    except (CutOff, JournalError, DeviceStalled) as error:
        print_to_stderr(complaint(error, PROGRAM))
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        silence_stdout()
    except Exception as error:
        print_to_stderr("\n".join(["".join(traceback.format_exception(error)).rstrip("\n"), recent_text()]))
        return FAILED
    return DONE


def parse(arguments: list[str]) -> Flags:
    """Parse the command line into one command's flags.

    Raises:
        SystemExit: 0 after --help, 2 on a wrong flag (tyro names it).
    """
    import tyro

    kinds = {
        "coordinator": Coordinator,
        "serve": Serve,
        "train": Train,
        "local": Local,
        "status": Status,
        "export": Export,
    }
    named = (Annotated[kind, tyro.conf.subcommand(name, prefix_name=False)] for name, kind in kinds.items())
    every: Any = functools.reduce(operator.or_, named)  # a union, as tyro takes it
    return tyro.cli(every, args=arguments, prog=PROGRAM, description=ABOUT, config=(tyro.conf.OmitArgPrefixes,))


async def _work(flags: Flags) -> None:
    if isinstance(flags, Local):
        from apps.swarm.local import local

        return await local(flags, print_line)
    if isinstance(flags, Status):
        from apps.swarm.status.command import show

        return await show(flags)
    if isinstance(flags, Export):
        from apps.swarm.export import export

        return await export(flags, print_line)
    if isinstance(flags, Coordinator):
        from pipelined.commands import directory

        return await directory.serve(flags.listen, flags.journal, print_line)
    from apps.swarm.commands import serve, train

    match flags:
        case Serve():
            await until_stop_request(serve(flags, print_line))
        case Train():
            await until_stop_request(train(flags, print_line))


def console() -> NoReturn:
    """The command `pipelined-swarm`: run one command and end the process with its exit code."""
    end_process(main())


if __name__ == "__main__":
    console()
