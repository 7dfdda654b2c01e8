"""`python -m apps.ravnest local`: coordinator, nodes and `train` on this machine, each a child of this process."""

import asyncio
import math
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from apps.common.commands.local_processes import (
    Child,
    ChildFailed,
    fail_when_ended,
    forward_output,
    started,
    started_coordinator,
    terminate,
)
from apps.common.flags.address import link_options, listen_url
from apps.common.flags.command_flags import arguments_of
from apps.ravnest.families.registry import read_data
from apps.ravnest.flags.commands import MIN_VOCABULARY, Local
from apps.ravnest.flags.groups import check_clusters
from apps.ravnest.plan import pool_request
from pipelined.actors.device.host_memory import free_memory
from pipelined.membership.connection import endpoint_at
from pipelined.process.exit import USAGE
from pipelined.process.reporting.progress import Say
from pipelined.process.stop_request import until_stop_request
from pipelined.ravnest.planning.backups import plan_with_backups
from pipelined.ravnest.planning.pool import PoolNode, read_pool
from transports import Nursery
from transports.emulation.options import LinkProfile
from transports.urls import split_profile

MODULE = "pipelined.apps.ravnest"
LINE = 1e9 / 8
"""Bytes a second of nodes of which neither a pool nor --links says it: each counts the same."""


async def local(flags: Local, say: Say) -> None:
    """Train to the last step, or until a stop request.

    Raises:
        UsageError: the text, the model, the pool or the links are impossible; no process was started.
        ChildFailed: a process failed; its output says why.
    """
    pool = read_pool(flags.pool) if flags.pool else ()
    check_clusters(flags.forming, len(pool) or flags.nodes)
    if pool:
        await asyncio.to_thread(_refuse_small, flags, pool)
    links = _links(flags, pool[0]) if pool else flags.links
    async with await endpoint_at(listen_url(links), f"--links {flags.links}"):  # checks the links
        pass
    await asyncio.to_thread(read_data, flags.settings.preset, flags.text)  # checks the text
    await until_stop_request(_local(flags, pool, say))


def _refuse_small(flags: Local, pool: tuple[PoolNode, ...]) -> None:
    """Raises UsageError: there is no plan for this pool, not even with the fewest symbols; the text decides later."""
    settings = flags.settings
    saves = flags.checkpoint is not None
    request = pool_request(settings, settings.model(MIN_VOCABULARY), flags.forming, saves=saves)
    plan_with_backups(replace(request, pool=pool, newcomers=flags.later.newcomers))


async def _local(flags: Local, pool: Sequence[PoolNode], say: Say) -> None:
    count = len(pool) or flags.nodes
    say(f"starting {count + 2} processes: a coordinator, `train` and {count} node{'s' * (count > 1)}")
    async with AsyncExitStack() as stack:
        coordinator, address = await stack.enter_async_context(started_coordinator(MODULE, flags.journal, flags.log))
        say(f"coordinator at {address}")
        if flags.links:
            say(f"emulated links: {link_options(flags.links)}")
        shared = ["--coordinator", address, "--log", flags.log]
        saving = [f"--{name}={path}" for name in ("orders", "checkpoint") if (path := getattr(flags, name))]
        saving += [f"--save-every={flags.save_every}", *arguments_of(flags.text)]
        serve = [[*words, *shared, *saving] for words in _serve_words(flags, pool)]
        train = ["train", *shared, "--listen", listen_url(""), "--name", "train", *_train_words(flags, len(serve))]
        trainer, *nodes = [await stack.enter_async_context(started(MODULE, words)) for words in [train, *serve]]
        try:
            await _follow(coordinator, trainer, nodes, say)
            say("local: all steps are trained; the nodes end")
        except asyncio.CancelledError:
            say("local: stopped before all steps were trained; the nodes end")
            raise
        finally:
            for child in (trainer, *nodes):  # all at once; each is awaited later
                terminate(child)


async def _follow(coordinator: Child, trainer: Child, nodes: Sequence[Child], say: Say) -> None:
    """Print what `train` and the nodes say until `train` has ended. Raises ChildFailed: as `local`."""
    async with Nursery() as tasks:
        watchers = [tasks.create_task(forward_output(child, say, ())) for child in (trainer, *nodes)]
        watchers.append(tasks.create_task(fail_when_ended(coordinator)))
        watchers.append(tasks.create_task(_fail_without_nodes(nodes)))
        code = await trainer.wait()
        await watchers[0]
        for task in watchers:
            task.cancel()
    if code:
        raise ChildFailed("train", code)


async def _fail_without_nodes(nodes: Sequence[Child]) -> None:
    """Raises ChildFailed: a node was refused, and all are then, as they have the same flags; or the last one ended."""
    codes = list[int]()

    async def watch(node: Child) -> None:
        codes.append(await node.wait())
        if codes[-1] == USAGE:
            raise ChildFailed("a node", USAGE)

    async with Nursery() as tasks:
        for node in nodes:
            tasks.create_task(watch(node))
    raise ChildFailed("the last node", codes[-1])


def _serve_words(flags: Local, pool: Sequence[PoolNode]) -> list[list[str]]:
    """The command line of each node."""
    if not pool:
        profile = _profile(flags)
        rates = [rate for rate in (profile.line, profile.rate) if rate < math.inf]
        line = rates[0] if rates else LINE
        node_flags = ["--listen", listen_url(flags.links), "--ram", str(free_memory() // flags.nodes)]
        node_flags += ["--bandwidth", _mbit(line), "--delay", f"{profile.delay:g}s", "--flops", "0"]
        return [["serve", "--name", f"node{n}", *node_flags] for n in range(flags.nodes)]
    return [_pool_node_words(flags, node) for node in pool]


def _pool_node_words(flags: Local, node: PoolNode) -> list[str]:
    """A node with the RAM and the line of the pool."""
    words = ["serve", "--name", node.name, "--listen", listen_url(_links(flags, node)), "--ram", str(node.ram)]
    words += ["--bandwidth", _mbit(node.bandwidth), "--delay", f"{_profile(flags).delay:g}s"]
    words += [] if node.reliability is None else ["--reliability", f"{node.reliability:g}"]
    return [*words, "--flops", f"{node.flops or 0.0:g}"]


def _links(flags: Local, node: PoolNode) -> str:
    """The links of a node, all behind one line of the pool's bandwidth."""
    return "&".join(filter(None, [link_options(flags.links), f"line={_mbit(node.bandwidth)}"]))


def _mbit(rate: float) -> str:
    """A rate in bytes a second as a flag takes it."""
    return f"{rate * 8 / 1e6:.12g}mbit"


def _profile(flags: Local) -> LinkProfile:
    """The emulated links, of which the plan counts the delay."""
    return split_profile(link_options(flags.links))[0] or LinkProfile()


def _train_words(flags: Local, nodes: int) -> list[str]:
    flag_groups = [flags.text, flags.forming, flags.later, flags.settings, flags.final]
    words = ["--nodes", str(nodes), *(word for flag_group in flag_groups for word in arguments_of(flag_group))]
    words += ["--resume", f"--checkpoint={flags.checkpoint}"] if flags.resume else []
    return words if flags.metrics is None else [*words, f"--metrics={flags.metrics}"]
