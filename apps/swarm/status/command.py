"""`python -m apps.swarm status`: show a swarm once, or continuously."""

from contextlib import ExitStack

from rich.console import Console
from rich.live import Live

from apps.swarm.flags import Status
from apps.swarm.joining import entered
from apps.swarm.status.look import Shown, looks
from apps.swarm.status.table import table
from apps.swarm.status.web import Web, as_json

EVERY_S = 1.0


async def show(flags: Status) -> None:
    """Print the state of a swarm; with --watch or --web until it is interrupted."""
    shown = Shown(flags.members, flags.stage)
    async with entered(flags.address) as (endpoint, directory):
        with ExitStack() as stack:
            web = stack.enter_context(Web(flags.web)) if flags.web is not None else None
            if web is not None:
                print(f"page at {web.address}", flush=True)
            live = stack.enter_context(Live(refresh_per_second=4)) if flags.watch else None
            async for seen in looks(endpoint, directory, EVERY_S, shown):
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
