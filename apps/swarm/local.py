"""`python -m apps.swarm local`: a whole swarm on this machine, each of its processes a child of this one."""

import asyncio
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial

from rich.console import Console
from rich.live import Live

from apps.common.commands.local_processes import (
    Child,
    ChildFailed,
    fail_when_ended,
    forward_output,
    kill,
    started,
    started_coordinator,
    terminate,
)
from apps.common.flags.address import link_options, listen_url
from apps.common.flags.command_flags import arguments_of
from apps.common.status_page.show import POLL_S
from apps.swarm.config import read_goal
from apps.swarm.data import read_task
from apps.swarm.flags import Local
from apps.swarm.metrics import STEP_LINES
from apps.swarm.status.table import table
from pipelined.membership.connection import connected, endpoint_at
from pipelined.process.exit import USAGE
from pipelined.process.reporting.progress import Say
from pipelined.process.stop_request import until_stop_request
from pipelined.swarm.status.reader import StatusReader
from transports import Nursery

MODULE = "pipelined.apps.swarm"


async def local(flags: Local, say: Say) -> None:
    """Train to the last step, or until a stop request.

    Raises:
        UsageError: the links or the text are impossible; no process was started.
        ChildFailed: a trainer or the coordinator failed, or a peer was refused; its output says why. Peers may fail.
    """
    async with await endpoint_at(listen_url(flags.links), f"--links {flags.links}"):  # checks the links
        pass
    await asyncio.to_thread(read_task, flags.settings, flags.text)  # checks the text
    processes = f"a coordinator, peers: {flags.peers}, trainers: {flags.trainers}"
    say(f"starting {1 + flags.peers + flags.trainers} processes ({processes})")
    await until_stop_request(_local(flags, say))


async def _local(flags: Local, say: Say) -> None:
    async with AsyncExitStack() as stack:
        starting = started_coordinator(MODULE, flags.journal, flags.log)
        coordinator, address = await stack.enter_async_context(starting)
        say(f"coordinator at {address}; show it with: python -m apps.swarm status --coordinator {address} --watch")
        if flags.links:
            say(f"emulated links: {link_options(flags.links)}")
        shared = ["--coordinator", address, "--listen", listen_url(flags.links), "--log", flags.log]
        peers = [
            await stack.enter_async_context(started(MODULE, ["serve", *shared, *_peer_flags(flags, n)]))
            for n in range(flags.peers)
        ]
        trainers = [
            await stack.enter_async_context(started(MODULE, ["train", *shared, *_trainer_flags(flags, n)]))
            for n in range(flags.trainers)
        ]
        try:
            async with Nursery() as tasks:
                watchers = [
                    tasks.create_task(_watch(address, peers, trainers, say)),
                    tasks.create_task(fail_when_ended(coordinator)),
                ]
                await _wait_for_trainers(trainers)
                for task in watchers:
                    task.cancel()
        except ChildFailed:  # no orderly end is possible
            for child in [*peers, *trainers]:
                kill(child)
            raise
        finally:
            for child in [*peers, *trainers]:  # all at once; each is awaited later
                terminate(child)


def _peer_flags(flags: Local, number: int) -> list[str]:
    words = ["--name", f"peer{number}"]
    if flags.checkpoint:
        words += ["--checkpoint", str(flags.checkpoint), "--save-every", str(flags.save_every)]
    return words


def _trainer_flags(flags: Local, number: int) -> list[str]:
    """The flags of one trainer; the first alone writes metrics and the model."""
    words = ["--name", f"trainer{number}", *arguments_of(flags.text), *arguments_of(flags.settings)]
    words += [f"--slots={flags.slots}", *(["--resume"] if flags.resume else [])]
    if number == 0 and flags.metrics:
        words += [f"--metrics={flags.metrics}"]
    if number == 0:
        words += arguments_of(flags.final)
    return words


async def _report_end(peer: Child, name: str, stages: Mapping[str, str], peers: Sequence[Child], say: Say) -> None:
    """Report how a peer ended, and that the others continue. If one peer is refused, all are: they have the same flags.

    Args:
        stages: by name, the stage that each peer last reported.
    """
    code = await peer.wait()
    if code == USAGE:
        raise ChildFailed("a peer", code)
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    count = sum(child.returncode is None for child in peers)
    remaining = f"{count} peers remain, and recompute the microbatches that only it had counted"
    place = stages.get(name, "at no stage yet")
    say(f"{name} (pid {peer.pid}, {place}) {how}; {remaining if count else 'no peer is left'}")


async def _wait_for_trainers(trainers: Sequence[Child]) -> None:
    for trainer in trainers:
        code = await trainer.wait()
        if code:
            raise ChildFailed("a trainer", code)


async def _watch(address: str, peers: Sequence[Child], trainers: Sequence[Child], say: Say) -> None:
    """Print the children's output and the ends of peers, and show the swarm live on a terminal.

    Only the first trainer prints lines about steps.
    """
    async with Nursery() as tasks:
        live = Live(refresh_per_second=4) if sys.stdout.isatty() else None
        say = print_above(live.console) if live else say
        stages = dict[str, str]()
        print_line = partial(_print_and_note, stages, say)
        for child in [*peers, *trainers[:1]]:
            tasks.create_task(forward_output(child, print_line, ()))
        for child in trainers[1:]:
            tasks.create_task(forward_output(child, print_line, STEP_LINES))
        for number, peer in enumerate(peers):
            tasks.create_task(_report_end(peer, f"peer{number}", stages, peers, say))
        if live is not None:
            with live:
                async with connected(address) as (endpoint, directory):
                    async for status in StatusReader(endpoint, directory, read_goal).repeat(POLL_S):
                        live.update(table(status))


def print_above(console: Console) -> Say:
    """A function that prints above a live view, without markup."""
    return partial(console.print, markup=False, highlight=False, soft_wrap=True)


def _print_and_note(stages: dict[str, str], say: Say, line: str) -> None:
    """Print a line, and note the stage that a peer reports in it."""
    if match := re.match(r"(peer\d+): (stage \d+)", line):
        stages[match[1]] = match[2]
    say(line)
