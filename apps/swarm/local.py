"""`python -m apps.swarm local`: a whole swarm on this machine, each of its processes a child of this one.

No child outlives this process: it receives SIGTERM, then SIGKILL, and the kernel kills it if its parent dies.
"""

import asyncio
import ctypes
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import fields
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.live import Live

from apps.swarm.config import ChildFailed, read_goal
from apps.swarm.families import cut_of
from apps.swarm.flags import Local
from apps.swarm.metrics import STEP_LINES
from apps.swarm.status.command import EVERY_S
from apps.swarm.status.table import table
from pipelined.aio.nursery import Nursery
from pipelined.membership.joining import connected, endpoint_at
from pipelined.process.exit import USAGE
from pipelined.process.stop_request import until_stop_request
from pipelined.swarm.status.reader import StatusReader

Child = asyncio.subprocess.Process
Say = Callable[[str], None]
PR_SET_PDEATHSIG = 1
ANY_VOCABULARY = 256
"""The cut of a model does not depend on its vocabulary, which only the trainers know."""
SHUTDOWN_GRACE_S = 10.0
"""Seconds between SIGTERM and SIGKILL."""


async def local(flags: Local, say: Say) -> None:
    """Train to the last step, or until a stop request.

    Raises:
        UsageError: the model or the links are impossible; no process was started.
        ChildFailed: a trainer or the coordinator failed, or a peer was refused; its output says why. Peers may fail.
    """
    cut_of(flags.subject, ANY_VOCABULARY)
    async with await endpoint_at(_listen_url(flags)):  # checks the links
        pass
    await until_stop_request(_local(flags, say))


async def _local(flags: Local, say: Say) -> None:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="swarm-")))
        journal = flags.journal or folder / "journal"
        log = ["--log", flags.log]
        coordinator = await stack.enter_async_context(_child(["coordinator", "--journal", str(journal), *log]))
        address = (await _line(coordinator)).rpartition(" ")[2].strip()
        if not address:
            raise ChildFailed("the coordinator", await coordinator.wait())
        say(f"coordinator at {address}; show it with: python -m apps.swarm status --coordinator {address} --watch")
        at = ["--coordinator", address, "--listen", _listen_url(flags), *log]
        peers = [["serve", *at, "--name", f"peer{number}", *_saving(flags)] for number in range(flags.peers)]
        trainers = [
            ["train", *at, "--name", f"trainer{number}", *_training(flags, number)] for number in range(flags.trainers)
        ]
        everyone = [await stack.enter_async_context(_child(words)) for words in [*peers, *trainers]]
        try:
            async with Nursery() as tasks:
                beside = [
                    tasks.create_task(_watch(address, everyone, len(peers), say)),
                    tasks.create_task(_needed(coordinator)),
                ]
                await _all_done(everyone[len(peers) :])
                for task in beside:
                    task.cancel()
        except ChildFailed:  # no orderly end is possible
            for child in everyone:
                _kill(child)
            raise
        finally:
            for child in everyone:  # all at once; each is awaited later
                _terminate(child)


def _listen_url(flags: Local) -> str:
    """Where each process listens."""
    return f"tcp://127.0.0.1:0?{flags.links}".rstrip("?")


def _saving(flags: Local) -> list[str]:
    return ["--checkpoint", str(flags.checkpoint), "--save-every", str(flags.save_every)] if flags.checkpoint else []


def _training(flags: Local, number: int) -> list[str]:
    words = ["--tokenizer", flags.tokenizer, "--slots", str(flags.slots)]
    if flags.data:
        words += ["--data", *map(str, flags.data)]
    if flags.resume:
        words += ["--resume"]
    if number == 0:
        words += _of_the_first(flags)
    for entry in fields(flags.subject):
        value = getattr(flags.subject, entry.name)
        if value != entry.default:
            flag = f"--{entry.name.replace('_', '-')}"
            words += [flag] if value is True else [flag, str(value)]
    return words


def _of_the_first(flags: Local) -> list[str]:
    """The flags of the first trainer alone."""
    given = {name: getattr(flags, name) for name in ("metrics", "export", "sample")}
    words = [f"--{name}={value}" for name, value in given.items() if value]
    return [*words, f"--prompt={flags.prompt}"]  # "=", as a prompt may begin with "-"


@asynccontextmanager
async def _child(words: Sequence[str]) -> AsyncIterator[Child]:
    """A process of the swarm, which ends with the block."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-u", "-m", "apps.swarm", *words, stdout=asyncio.subprocess.PIPE, preexec_fn=_belong_to_parent
    )
    try:
        yield child
    finally:
        await _end(child)


async def _end(child: Child) -> None:
    """Wait until a child has ended; kill it after SHUTDOWN_GRACE_S, or when this coroutine is cancelled."""
    _terminate(child)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_GRACE_S):
                await child.communicate()
    finally:
        _kill(child)
        await child.wait()


def _terminate(child: Child) -> None:
    if child.returncode is None:
        with suppress(ProcessLookupError):
            child.terminate()


def _kill(child: Child) -> None:
    if child.returncode is None:
        with suppress(ProcessLookupError):
            child.kill()


def _belong_to_parent() -> None:
    """In the child: ignore Ctrl-C and SIGHUP, which the parent handles; die with the parent."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


async def _needed(coordinator: Child) -> None:
    raise ChildFailed("the coordinator", await coordinator.wait())


async def _report_end(peer: Child, name: str, last: Mapping[str, str], others: Sequence[Child], say: Say) -> None:
    """Report how a peer ended, and that the others continue. If one peer is refused, all are: they have the same flags.

    Args:
        last: by name, the stage that each peer last reported.
    """
    if (code := await peer.wait()) == USAGE:
        raise ChildFailed("a peer", code)
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    left = sum(other.returncode is None for other in others)
    on = f"{left} peers remain, and recompute the microbatches that only it had counted" if left else "no peer is left"
    say(f"{name} (pid {peer.pid}, {last.get(name, 'at no stage yet')}) {how}; {on}")


async def _all_done(trainers: Sequence[Child]) -> None:
    for trainer in trainers:
        code = await trainer.wait()
        if code:
            raise ChildFailed("a trainer", code)


async def _watch(address: str, everyone: Sequence[Child], peers: int, say: Say) -> None:
    """Print the children's output and the ends of peers, and show the swarm live on a terminal.

    Args:
        everyone: the peers, then the trainers. Lines about steps are printed of the first trainer alone.
    """
    async with Nursery() as tasks:
        live = Live(refresh_per_second=4) if sys.stdout.isatty() else None
        say, last = above(live.console) if live else say, dict[str, str]()
        for at, child in enumerate(everyone):
            tasks.create_task(_pass_on(child, partial(_noted, last, say), STEP_LINES if at > peers else ()))
        for at, child in enumerate(everyone[:peers]):
            tasks.create_task(_report_end(child, f"peer{at}", last, everyone[:peers], say))
        if live is not None:
            with live:
                async with connected(address) as (endpoint, directory):
                    async for seen in StatusReader(endpoint, directory, read_goal).repeat(EVERY_S):
                        live.update(table(seen))


def above(console: Console) -> Say:
    """A function that prints above a live view, without markup."""
    return partial(console.print, markup=False, highlight=False, soft_wrap=True)


def _noted(last: dict[str, str], say: Say, line: str) -> None:
    """Print a line, and note the stage that a peer reports in it."""
    if found := re.match(r"(peer\d+): (stage \d+)", line):
        last[found[1]] = found[2]
    say(line)


async def _line(child: Child) -> str:
    """The next line that a child prints; "" at its end."""
    assert child.stdout is not None  # `_child` gives it a pipe
    return (await child.stdout.readline()).decode(errors="replace")


async def _pass_on(child: Child, say: Say, but: tuple[str, ...]) -> None:
    """Print the output of a child.

    Args:
        but: lines with one of these beginnings are left out.
    """
    while line := await _line(child):
        if not line.startswith(but):
            say(line.rstrip())
