"""Train with a swarm of unreliable machines: `python -m apps.swarm local --peers 6 --stages 3`.

    local         a whole swarm on this machine, with a live view
    coordinator   run the directory: the members, and the committed step
    serve         join as a peer
    train         run a trainer
    status        show a swarm
    export        write the model in Hugging Face's format, and sample from it

Read the flags, then run one coroutine. Torch is imported only by the commands that compute.
"""

from typing import NoReturn

from apps.common.commands.program import Command, CommandProgram
from apps.common.flags.command_flags import Coordinator
from apps.swarm.flags import Export, Local, Serve, Status, Train
from pipelined.process.exit import end_process, print_line
from pipelined.process.stop_request import until_stop_request
from pipelined.swarm.peer.device_watchdog import DeviceStalled

NAME = "python -m apps.swarm"


async def _run_local(flags: Local) -> None:
    from apps.swarm.local import local

    await local(flags, print_line)


async def _run_coordinator(flags: Coordinator) -> None:
    from pipelined.commands import directory

    await directory.serve(flags.listen, flags.journal, print_line)


async def _serve(flags: Serve) -> None:
    from apps.swarm.commands import serve

    await until_stop_request(serve(flags, print_line))


async def _train(flags: Train) -> None:
    from apps.swarm.commands import train

    await until_stop_request(train(flags, print_line))


async def _show_status(flags: Status) -> None:
    from apps.swarm.status.table import status

    await status(flags)


async def _export(flags: Export) -> None:
    from apps.swarm.export import export

    await export(flags, print_line)


COMMANDS = CommandProgram(
    NAME,
    f"""Train with a swarm of unreliable machines (docs/swarm.md).

A whole swarm on this machine: {NAME} local --peers 6 --stages 3

On several machines: one coordinator, then serve and train on any number of them, in any order; status shows them.
--version shows the version.""",
    {
        "local": Command(Local, _run_local),
        "coordinator": Command(Coordinator, _run_coordinator),
        "serve": Command(Serve, _serve),
        "train": Command(Train, _train),
        "status": Command(Status, _show_status),
        "export": Command(Export, _export),
    },
    (DeviceStalled,),
)
parse = COMMANDS.parse


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code, see `CommandProgram.main`."""
    return COMMANDS.main(arguments)


def console() -> NoReturn:
    """The command `pipelined-swarm`: run one command and end the process with its exit code."""
    end_process(main())


if __name__ == "__main__":
    console()
