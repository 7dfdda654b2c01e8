"""The command `status` of a program: show the status of a system once, or continuously."""

from collections.abc import AsyncIterator
from contextlib import ExitStack

from rich.console import Console
from rich.live import Live

from apps.common.arguments import ShowFlags
from apps.common.web import Rendering, S, Web, as_json

EVERY_S = 1.0
"""Seconds between two requests for the status of a system."""


async def show(flags: ShowFlags, polled: AsyncIterator[S], rendering: Rendering[S]) -> None:
    """Print the status; with --watch or --web until it is interrupted, with --json a line for each poll.

    Args:
        polled: the status, again and again.
    """
    with ExitStack() as stack:
        web = stack.enter_context(Web(flags.web, rendering)) if flags.web is not None else None
        if web is not None:
            print(f"page at {web.address}", flush=True)
        live = stack.enter_context(Live(refresh_per_second=4)) if flags.watch and not flags.json else None
        async for seen in polled:
            if live is not None:
                live.update(rendering.table(seen))
            elif flags.json:
                print(as_json(seen.plain()), flush=True)
            elif web is None:
                Console().print(rendering.table(seen))
            if web is not None:
                web.last = seen
            if not flags.watch and web is None:
                return
