"""What the processes of a swarm on one machine say comes through as it is, and what all trainers say alike once."""

import asyncio
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from apps._swarm_config import ChildFailed
from apps._swarm_local import _not_refused, _pass_on, above
from apps._swarm_metrics import STEP

LINES = ["t0: waits", "step 0: loss 5.5", "", "sample:", "a [/b] [red]step c"]


async def passed_on(but):
    said, stdout = [], asyncio.StreamReader()
    stdout.feed_data("".join(f"{line}\n" for line in LINES).encode() + b"\xff")
    stdout.feed_eof()
    await _pass_on(SimpleNamespace(stdout=stdout), said.append, but)
    return said


@pytest.mark.parametrize("but, kept", [("", LINES), (STEP, LINES[:1] + LINES[2:])])
def test_a_child_is_heard_but_for_what_another_says_too(but, kept):
    assert asyncio.run(passed_on(but)) == [*kept, "\N{REPLACEMENT CHARACTER}"]


def test_what_is_said_above_a_live_view_is_no_markup():
    shown = StringIO()
    for line in LINES:
        above(Console(file=shown, force_terminal=True, width=10))(line)
    assert shown.getvalue().splitlines() == LINES


def test_a_peer_may_fail_and_may_not_be_refused():
    def ended(code):
        return SimpleNamespace(wait=lambda: asyncio.sleep(0, code))

    for code in (0, 1, -9):
        asyncio.run(_not_refused(ended(code)))
    with pytest.raises(ChildFailed, match="a peer ended with 2"):
        asyncio.run(_not_refused(ended(2)))
