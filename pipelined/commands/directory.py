"""Run the directory of a swarm or of another system: its members, their leader, and what is committed.

It prints its address, and ends on SIGTERM or when its terminal closes. Other machines need PIPELINED_KEY.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import get_args

from pipelined.aio.clock import RealClock
from pipelined.errors import UsageError
from pipelined.membership.directory.server.disk import JournalError
from pipelined.membership.directory.server.serve import serve_directory
from pipelined.process.exit import print_line
from pipelined.process.reporting.events import Level, log_to_stderr
from pipelined.process.stop_request import until_stop_request
from transports.aio.event_loop import new_event_loop
from transports.errors import TransportError
from transports.rpc.base import Endpoint
from transports.rpc.registry import open_endpoint

LISTEN = "tcp://127.0.0.1:0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument(
        "--listen",
        default=LISTEN,
        metavar="URL",
        help="address that accepts requests; the port is printed. Other machines need PIPELINED_KEY",
    )
    parser.add_argument(
        "--journal",
        type=Path,
        metavar="FILE",
        help="file from which a restarted directory continues; without it a restart begins another directory",
    )
    parser.add_argument(
        "--log",
        choices=get_args(Level),
        default="warning",
        help="print events from this level up to stderr, one per line: debug, info, warning or error",
    )


def run(arguments: argparse.Namespace) -> None:
    """Serve until a stop request.

    Raises:
        UsageError: it cannot listen there, or the file is not a journal.
        SystemExit: code 1: the journal cannot be written any more.
    """
    log_to_stderr(arguments.log)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve(arguments.listen, arguments.journal, print_line))
    except JournalError as error:
        sys.exit(f"python -m pipelined directory: error: {error}")


async def serve(
    listen: str,
    journal: Path | None,
    say: Callable[[str], None],
    beside: Callable[[Endpoint], None] = lambda endpoint: None,
) -> None:
    """Serve a directory until a stop request.

    Args:
        listen: URL of the endpoint that accepts requests.
        say: called with a line that ends with the address, when the directory accepts requests.
        beside: registers what else the endpoint serves.
    Raises:
        UsageError: it cannot listen there, or the file is not a journal.
        JournalError: the journal cannot be written any more; every reply so far is in it.
    """
    try:
        endpoint = await open_endpoint(listen)
    except (ValueError, TransportError) as error:
        raise UsageError(f"--listen {listen}: {error}") from error
    async with endpoint:
        beside(endpoint)
        ready = partial(say, f"coordinator at {endpoint.address}")
        await until_stop_request(serve_directory(endpoint, RealClock(), journal, ready=ready))
