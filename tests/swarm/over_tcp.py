"""Swarms of tasks in one process on the real clock."""

import asyncio


async def end_in_order(running):
    """Cancel the tasks, the first of which is the directory, and that one last.

    Peers that can no longer take leave of it try that for as long as a lease.
    """
    directory, *others = running
    for task in others:
        task.cancel()
    await asyncio.wait(others)
    directory.cancel()
