"""`python -m apps.swarm status`: show a swarm once, or continuously."""

from collections.abc import AsyncIterator
from contextlib import ExitStack

from rich.console import Console
from rich.live import Live

from apps.swarm.config import read_goal
from apps.swarm.flags import Status
from apps.swarm.status.table import table
from apps.swarm.status.web import Web, as_json
from pipelined.directory import Directory
from pipelined.swarm.joining import connected
from pipelined.swarm.status import Report, Selection, StatusReader
from transports.rpc import Endpoint

EVERY_S = 1.0


async def show(flags: Status) -> None:
    """Print the state of a swarm; with --watch or --web until it is interrupted."""
    selection = Selection(flags.members, flags.stage)
    async with connected(flags.address.url, flags.address.listen) as (endpoint, directory):
        with ExitStack() as stack:
            web = stack.enter_context(Web(flags.web)) if flags.web is not None else None
            if web is not None:
                print(f"page at {web.address}", flush=True)
            live = stack.enter_context(Live(refresh_per_second=4)) if flags.watch else None
            async for seen in statuses(endpoint, directory, selection):
                if live is not None:
                    live.update(table(seen))
                elif flags.json:
                    print(as_json(seen))
                elif web is None:
                    Console().print(table(seen))
                if web is not None:
                    web.last = seen
                if live is None and web is None:
                    return


async def statuses(
    endpoint: Endpoint, directory: Directory, selection: Selection | None = None
) -> AsyncIterator[Report]:
    """The status of a swarm every second, with the seconds since the directory last replied as `past_s`."""
    reader = StatusReader(endpoint, directory, read_goal, selection)
    async for status, age in reader.repeat(EVERY_S):
        yield {**status.plain(), "past_s": age}
