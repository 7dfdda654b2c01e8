"""The command `status` of a program: show the status of a system once, or continuously."""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from apps.common.flags.command_flags import ShowFlags
from apps.common.status_page.web import Rendering, S, Web, to_json
from pipelined.errors import printable
from pipelined.process.exit import print_to_stderr
from pipelined.process.reporting.progress import reported_wait

POLL_S = 1.0
"""Seconds between two requests for the status of a system."""
GAP = 2
"""Characters between two columns."""
FOLDED = 8
"""Characters to which a column of names may shrink."""


async def show(flags: ShowFlags, statuses: AsyncIterator[S], rendering: Rendering[S]) -> None:
    """Print the status; with --watch or --web until it is interrupted, with --json a line for each poll.

    A terminal shows a watched status in one place; elsewhere each one is printed below the one before.

    Args:
        statuses: the status, again and again.
    """
    with ExitStack() as stack:
        web = stack.enter_context(Web(flags.web, rendering)) if flags.web is not None else None
        if web is not None:
            print(f"page at {web.address}", flush=True)
        in_place = flags.watch and not flags.json and Console().is_terminal
        live = stack.enter_context(Live(refresh_per_second=4)) if in_place else None
        async for status in _report_wait(statuses):
            if live is not None:
                live.update(rendering.table(status))
            elif flags.json:
                print(to_json(status.to_dict()), flush=True)
            elif web is None or flags.watch:
                Console().print(rendering.table(status))
            if web is not None:
                web.last = status
            if not flags.watch and web is None:
                return


async def _report_wait(statuses: AsyncIterator[S]) -> AsyncIterator[S]:
    """The same; if the first takes a moment, stderr has a line that says so."""
    async with reported_wait("the directory", print_to_stderr):
        first_status = await anext(statuses)
    yield first_status
    async for status in statuses:
        yield status


def text(line: str, style: str = "") -> Text:
    """A line or cell to print. Names and reasons come from the network, so control characters are replaced."""
    return Text(printable(line, but=""), style=style)


@dataclass(frozen=True)
class Members:
    """A line for each member of a system. On a narrow terminal names wrap, and the last columns are left out.

    Args:
        columns: their names.
        rows: the cells of each member.
        styles: the style of each row.
        names: the columns that may wrap.
        words: the columns that begin at the left; others end at the right.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    styles: Sequence[str]
    names: Collection[str]
    words: Collection[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = [self._column(*cells) for cells in zip(self.columns, *self.rows, strict=True)]
        while sum((column.min_width or 0) + GAP for column in columns) - GAP > options.max_width and len(columns) > 2:
            columns.pop()
        table = Table(*columns, box=None, pad_edge=False)
        for row, style in zip(self.rows, self.styles, strict=True):
            table.add_row(*map(text, row[: len(columns)]), style=style)
        yield table

    def _column(self, name: str, *cells: str) -> Column:
        widest = max(map(len, (name, *cells)))
        if name in self.names:
            return Column(name, overflow="fold", min_width=min(FOLDED, widest))
        return Column(name, no_wrap=True, justify="left" if name in self.words else "right", min_width=widest)
