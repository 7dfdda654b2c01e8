"""Train a model larger than any of the PCs that train it: `python -m apps.ravnest local --nodes 3 --clusters 1`.

    plan          form clusters of a pool of PCs, and cut the model in each
    coordinator   run the directory: nodes, clusters, and how far they are
    serve         join as a node
    train         say what is trained, form clusters, and show their steps
    local         all of it on this machine

Read the flags, then run one command. Planning needs neither torch nor a network.
"""

import asyncio
import sys
import traceback
from collections.abc import Callable

from apps.common.children import ChildFailed
from apps.ravnest.flags import Coordinator, Local, Plan, Serve, Train
from pipelined import __version__
from pipelined.aio.events import log_to_stderr, recent_text
from pipelined.directory import CutOff, JournalError, WrongKey
from pipelined.errors import UsageError
from pipelined.process.exit import end_process, print_line, print_to_stderr, silence_stdout
from pipelined.process.run import complaint
from pipelined.process.stop_request import until_stop_request
from pipelined.ravnest.forming import NodeLost, UnequalClusters
from transports import new_event_loop

Flags = Plan | Coordinator | Serve | Train | Local
DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
PROGRAM = "python -m apps.ravnest"
ABOUT = f"""Train a model that none of your PCs can hold (docs/ravnest.md).

All of it on this machine: {PROGRAM} local --nodes 3 --clusters 1

On several machines: one coordinator, one train, and a serve on each. plan shows clusters and cuts of a pool without
any network. --version shows the version."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code (0 done, 1 failure, 2 usage, 130 interrupted)."""
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
    except (CutOff, JournalError, NodeLost, UnequalClusters) as error:
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

    kinds: dict[str, Callable[..., Flags]] = {
        "plan": Plan,
        "coordinator": Coordinator,
        "serve": Serve,
        "train": Train,
        "local": Local,
    }
    return tyro.extras.subcommand_cli_from_dict(
        kinds, args=arguments, prog=PROGRAM, description=ABOUT, config=(tyro.conf.OmitArgPrefixes,)
    )


async def _work(flags: Flags) -> None:
    flags.check()
    match flags:
        case Plan():
            from apps.ravnest.plan import plan

            plan(flags, print_line)
        case Coordinator():
            from pipelined.commands import directory

            await directory.serve(flags.listen, flags.journal, print_line)
        case Local():
            from apps.ravnest.local import local

            await local(flags, print_line)
        case Serve():
            from apps.ravnest.commands import serve

            await until_stop_request(serve(flags, print_line))
        case Train():
            from apps.ravnest.commands import train

            await until_stop_request(train(flags, print_line))


if __name__ == "__main__":
    end_process(main())
