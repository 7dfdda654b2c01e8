"""Children of `local`: their output is passed on, and a signal to the group of their parent does not reach them."""

import os
import subprocess

import pytest

from apps.common.commands.local_processes import forward_output, kill, next_line, started, terminate


async def test_a_long_line_of_a_child_is_passed_on():
    """A line of over 64 KiB, as of a long sample, ended the parent."""
    lines = []
    async with started("timeit", ["-n", "1", "-r", "1", "print('x' * 100_000)"]) as child:
        await forward_output(child, lines.append, ("1 loop", "raw"))
    assert "x" * 100_000 in lines


async def test_a_child_has_a_process_group_of_its_own():
    """`timeout` ended the coordinator with its parent, so that peers lost it before they were told to end."""
    async with started("timeit", ["-n", "1", "-r", "1", "import os; print(os.getpgrp())"]) as child:
        group = int(await next_line(child))
    assert group == child.pid != os.getpgrp()


@pytest.mark.parametrize("end", [terminate, kill])
async def test_a_signal_to_a_child_leaves_its_exit_code_to_the_loop(end, monkeypatch):
    """Else of a child that has just ended the code is lost, and asyncio warns of an unknown process."""
    async with started("timeit", ["pass"]) as child:
        monkeypatch.setattr(subprocess.Popen, "poll", lambda process: pytest.fail("its exit code was taken"))
        end(child)
        assert await child.wait() < 0
