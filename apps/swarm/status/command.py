"""`python -m apps.swarm status`: show a swarm once, or continuously."""

from contextlib import ExitStack

from rich.console import Console
from rich.live import Live

from apps.swarm.config import read_goal
from apps.swarm.flags import Status
from apps.swarm.status.table import table
from apps.swarm.status.web import Web, as_json
from pipelined.membership.joining import connected
from pipelined.swarm.status.reader import StatusReader
from pipelined.swarm.status.status import Selection

EVERY_S = 1.0
"""Seconds between two requests for the status of a swarm."""


async def show(flags: Status) -> None:
    """Print the state of a swarm; with --watch or --web until it is interrupted."""
    selection = Selection(flags.members, flags.stage)
    async with connected(flags.address.url, flags.address.listen) as (endpoint, directory):
        reader = StatusReader(endpoint, directory, read_goal, selection)
        with ExitStack() as stack:
            web = stack.enter_context(Web(flags.web)) if flags.web is not None else None
            if web is not None:
                print(f"page at {web.address}", flush=True)
            live = stack.enter_context(Live(refresh_per_second=4)) if flags.watch else None
            async for seen in reader.repeat(EVERY_S):
                if live is not None:
                    live.update(table(seen))
                elif flags.json:
                    print(as_json(seen.plain()))
                elif web is None:
                    Console().print(table(seen))
                if web is not None:
                    web.last = seen
                if live is None and web is None:
                    return
