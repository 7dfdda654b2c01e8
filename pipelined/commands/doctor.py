"""Examine MPI, threads, cores, memory, devices and links, and print advice; under mpirun for all ranks."""

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipelined.measurement.doctor import Examination
    from pipelined.process.launch import Launch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> None:
    """Examine all ranks; rank 0 prints the report. The exit code is 0 whenever a report was printed.

    Raises:
        UsageError: the launcher's variables make no sense.
    """
    from pipelined.measurement.doctor import advise, as_text
    from pipelined.process.launch import detect

    launch = detect(os.environ)
    examination = _examine(launch)
    if examination is None:
        return
    advice = advise(examination)
    if arguments.json:
        rows = [{"fact": remark.fact, "remedy": remark.remedy, "stops": remark.blocks_training} for remark in advice]
        print(json.dumps({**examination.to_dict(), "advice": rows}))
    else:
        print(as_text(examination, advice))


def _examine(launch: "Launch") -> "Examination | None":
    """The examination; None on ranks that print nothing."""
    import asyncio

    from pipelined.measurement.doctor import examine_alone
    from transports import new_event_loop

    if launch.world_size is None:
        _progress(launch)("loading MPI and torch")
        return examine_alone(launch)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_examine_all(launch))


async def _examine_all(launch: "Launch") -> "Examination | None":
    """The examination of all ranks, or of this machine alone if they cannot connect."""
    from pipelined.measurement.doctor import examine, examine_alone
    from transports import TransportError, open_transport

    try:
        transport = await open_transport(launch.url)
    except (ValueError, OSError, TransportError) as error:
        return examine_alone(launch, str(error)) if launch.prints_errors else None
    try:
        examination = await examine(transport, launch, _progress(launch))
    except BaseException as error:
        await transport.abort(str(error))
        raise
    await transport.close()
    return examination


def _progress(launch: "Launch") -> Callable[[str], None]:
    """A function that prints lines of progress to rank 0's stderr."""
    if launch.rank:
        return lambda line: None
    return lambda line: print(line, file=sys.stderr, flush=True)
