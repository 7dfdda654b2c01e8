"""A soak names the levels that grow, sees what a mailbox keeps, and keeps its levels over a short run."""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from benchmarks.harness.levels import Levels, look
from tests.launching import ROOT
from transports.mailbox import Mailbox

AT_FIRST = Levels(100 << 20, 4096, 10, 2, 5, 0, 30_000)


@pytest.mark.parametrize(
    ("later", "grown"),
    [
        ({}, []),
        ({"resident": (102 << 20) + 64 * 9000, "objects": 30_400}, []),
        ({"resident": (104 << 20) + 64 * 9000}, ["resident"]),
        ({"objects": 39_000}, ["objects"]),
        ({"descriptors": 11, "tasks": 6}, ["descriptors", "tasks"]),
        ({"mailbox": 1, "shared": 8192, "threads": 3}, ["shared", "threads", "mailbox"]),
        ({"resident": 1, "tasks": 0}, []),
    ],
)
def test_a_level_that_rose_by_more_than_chance_allows_is_named(later, grown):
    assert AT_FIRST.grown(replace(AT_FIRST, **later), steps=9000) == grown


def test_an_unexpected_message_a_task_and_a_descriptor_are_seen():
    async def story():
        mailbox, before = Mailbox(2), look()
        mailbox.put(1, ("unasked",), b"1")
        waiting = asyncio.create_task(asyncio.Event().wait())
        descriptor = os.open("/dev/null", os.O_RDONLY)
        await asyncio.sleep(0)
        between = look()
        os.close(descriptor)
        waiting.cancel()
        await asyncio.wait([waiting])
        mailbox.drop(1)
        return [(each.mailbox, each.tasks, each.descriptors) for each in (before, between, look())]

    before, between, after = asyncio.run(story())
    assert between == tuple(level + 1 for level in before) and after == before


@pytest.mark.in_turns(2)
@pytest.mark.parametrize(
    ("over", "processes"),
    [("swarm", 1), pytest.param("tcp", 2, marks=pytest.mark.full), pytest.param("mpi", 2, marks=pytest.mark.full)],
)
def test_a_short_soak_keeps_its_levels(over, processes):
    flags = ["--over", over, *"--steps 60 --settled 25 --looks 4 --json".split()]
    command = [sys.executable, "-m", "benchmarks.soak", *flags]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    soaks = json.loads(done.stdout)["soaks"]
    assert [one["name"] for one in soaks] == [f"{over} {rank}" for rank in range(processes)]
    assert all(one["before"]["descriptors"] > 3 and one["before"]["tasks"] for one in soaks)
