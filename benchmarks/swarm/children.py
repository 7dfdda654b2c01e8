"""Processes of a swarm that a benchmark starts: their lines, and the moment of each. None outlives the block.

A module of such processes is run as `python -m MODULE ROLE ADDRESS NAME …`; the coordinator first says `at ADDRESS`.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from benchmarks.harness.ranks import ROOT


class Child:
    """One of them.

    Attributes:
        name: of the party.
        process: for signals.
        said: every line so far as words, and the moment at which it came.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process):
        self.name, self.process = name, process
        self.said: list[tuple[float, list[str]]] = []

    async def listen(self) -> None:
        """Take down what it says until it ends."""
        while line := await self.process.stdout.readline():
            self.said.append((time.perf_counter(), line.decode().split()))


@asynccontextmanager
async def child(module: str, *words: str, name: str = "") -> AsyncIterator[Child]:
    """Start one; it is killed at the end of the block if it still runs, stopped or not."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        *words,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        yield Child(name, process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def address_of(coordinator: Child) -> str:
    """Where the coordinator is, as it says first."""
    return (await coordinator.process.stdout.readline()).decode().split()[1]


def moments(said: Sequence[tuple[float, list[str]]], word: str) -> list[float]:
    """When lines that begin with this word came."""
    return [moment for moment, words in said if words and words[0] == word]
