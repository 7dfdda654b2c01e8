"""Train a model larger than any of the PCs that train it: `python -m apps.ravnest local --nodes 3 --clusters 1`.

    local         all of it on this machine
    plan          form clusters of a pool of PCs, and cut the model in each
    coordinator   run the directory: nodes, clusters, and how far they are
    serve         join as a node
    train         say what is trained, form clusters, and show their steps
    status        show the clusters
    export        write the model that the nodes saved
    replay        train again in one process, each node in its recorded order

Read the flags, then run one command. Planning needs neither torch nor a network.
"""

from typing import NoReturn

from apps.common.commands.program import Command, CommandProgram
from apps.common.flags.command_flags import Coordinator
from apps.ravnest.flags.commands import Export, Local, Plan, Replay, Serve, Status, Train
from apps.ravnest.flags.config import MEANINGLESS
from pipelined.process.exit import end_process, print_line
from pipelined.process.stop_request import until_stop_request
from pipelined.ravnest.records.progress import UnequalClusters

NAME = "python -m apps.ravnest"


async def _run_local(flags: Local) -> None:
    from apps.ravnest.local import local

    await local(flags, print_line)


async def _plan(flags: Plan) -> None:
    from apps.ravnest.plan import plan

    plan(flags, print_line)


async def _run_coordinator(flags: Coordinator) -> None:
    from pipelined.commands import directory
    from pipelined.measurement.timed.line import serve_line

    await directory.serve(flags.listen, flags.journal, print_line, serve_line)


async def _serve(flags: Serve) -> None:
    from apps.ravnest.commands import serve

    await until_stop_request(serve(flags, print_line))


async def _train(flags: Train) -> None:
    from apps.ravnest.commands import train

    await until_stop_request(train(flags, print_line))


async def _show_status(flags: Status) -> None:
    from apps.ravnest.status import show_status

    await show_status(flags)


async def _export(flags: Export) -> None:
    from apps.ravnest.commands import export

    await export(flags, print_line)


async def _replay(flags: Replay) -> None:
    from apps.ravnest.commands import replay

    await until_stop_request(replay(flags, print_line))


COMMANDS = CommandProgram(
    NAME,
    f"""Train a model that none of your PCs can hold (docs/ravnest.md).

All of it on this machine: {NAME} local --nodes 3 --clusters 1

On several machines: one coordinator, one train, and a serve on each.

plan shows clusters and cuts of a pool without any network. --version shows the version.""",
    {
        "local": Command(Local, _run_local),
        "plan": Command(Plan, _plan),
        "coordinator": Command(Coordinator, _run_coordinator),
        "serve": Command(Serve, _serve),
        "train": Command(Train, _train),
        "status": Command(Status, _show_status),
        "export": Command(Export, _export),
        "replay": Command(Replay, _replay),
    },
    (UnequalClusters,),
    MEANINGLESS,
)
parse = COMMANDS.parse


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code, see `CommandProgram.main`."""
    return COMMANDS.main(arguments)


def console() -> NoReturn:
    """The command `pipelined-ravnest`: run one command and end the process with its exit code."""
    end_process(main())


if __name__ == "__main__":
    console()
