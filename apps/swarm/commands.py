"""The processes of a swarm, each from its flags to its end: coordinator, peer, trainer.

SIGTERM, or a terminal that closes, makes a peer hand over its state and leave, and ends a trainer or coordinator; a
process that still waits for the directory ends, too.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from apps.lm.data.text import read_text
from apps.swarm.config import Told
from apps.swarm.data import feed_of
from apps.swarm.families import cut_of
from apps.swarm.flags import Coordinator, Serve, Train
from apps.swarm.joining import agree, as_member, claim_for, endpoint_at, entered, what_is_trained
from apps.swarm.metrics import StepLog
from apps.swarm.peer_log import PeerLog
from apps.swarm.saved import other_text, saved_of
from apps.swarm.waiting import WaitLog, telling
from pipelined.actors.executor import TorchExecutor
from pipelined.aio.clock import RealClock
from pipelined.aio.nursery import Nursery
from pipelined.directory import serve_directory
from pipelined.membership.client import Node
from pipelined.process.stop_request import asking, hang_up
from pipelined.state.store import DiskStore
from pipelined.swarm.config import PeerConfig
from pipelined.swarm.peer.peer import StagePeer
from pipelined.swarm.processes import PeerProcess, TrainerProcess


async def coordinate(flags: Coordinator, say: Callable[[str], None]) -> None:
    """Serve the directory until a stop request."""
    async with await endpoint_at(flags.listen) as endpoint:
        ready = partial(say, f"coordinator at {endpoint.address}")
        await until_stop_request(serve_directory(endpoint, RealClock(), flags.journal, ready=ready))


async def serve(flags: Serve, say: Callable[[str], None]) -> None:
    """Serve as a peer until a request to leave."""
    async with AsyncExitStack() as stack:
        endpoint, directory = await stack.enter_async_context(entered(flags.address))
        from apps.swarm.training import check_device, rules_of, training_of
        from pipelined.swarm.stages.torch_stage import TorchStage

        await asyncio.to_thread(check_device, flags.device)
        trained = await what_is_trained(directory, flags.address, say)
        trained.subject.check_stage(flags.stage)
        training = await asyncio.to_thread(training_of, trained)
        if flags.checkpoint:
            found = await asyncio.to_thread(saved_of, flags.checkpoint, training.model.identity())
            if fact := await asyncio.to_thread(other_text, flags.checkpoint, found, trained.text):
                say(f"warning: {fact}")
            claimed = stack.enter_context(await claim_for(directory, flags.checkpoint))
            if claimed.warning:
                say(f"warning: {claimed.warning}")
        rules, clock = rules_of(trained, training), RealClock()
        directory = await stack.enter_async_context(as_member(flags.address, endpoint, rules.lease_s))
        device = TorchExecutor(flags.device, clock)
        name = flags.address.name or _own_name()

        store = DiskStore(flags.checkpoint, training.model.identity(), text=trained.text) if flags.checkpoint else None
        config = PeerConfig(flags.stage, flags.grace, store, flags.save_every)
        build = partial(TorchStage, training, device=flags.device)
        process = PeerProcess(Node(name, endpoint, directory, clock), build, rules, device, config)
        say(f"{name}: peer at {endpoint.address}, model {rules.digest}")
        _on_request(lambda: _let_go(process.peer, f"{name}: asked to leave (its notice: {flags.grace:g} s)", say))
        async with Nursery() as tasks:
            log = tasks.create_task(
                PeerLog(name, endpoint.address, process.view, lambda: process.peer.trouble, say).follow()
            )
            await process.run()
            log.cancel()
        say(f"{name}: left")


async def train(flags: Train, say: Callable[[str], None]) -> None:
    """Train until the last step is committed, or until a stop request; at the end export and sample, if requested."""
    subject = flags.subject
    text = await asyncio.to_thread(read_text, flags.data, flags.tokenizer)
    feed = feed_of(text, subject.microbatch, subject.seq, subject.batch // subject.microbatch, subject.seed)
    mine = Told(subject, text.tokenizer.vocab_size, text.digest, feed.held_out)
    cut_of(subject, mine.vocabulary)  # before torch is imported
    async with AsyncExitStack() as stack:
        endpoint, directory = await stack.enter_async_context(entered(flags.address))
        from apps.swarm.export import Wish, fetch
        from apps.swarm.training import rules_of, training_of

        training = await asyncio.to_thread(training_of, mine)
        wish = Wish(flags.export, flags.sample, flags.prompt, subject.seq, subject.seed)
        wish.check(training.model)
        rules, name = rules_of(mine, training), flags.address.name or _own_name()
        async with telling(flags.address.description, say):
            await agree(directory, mine)
        directory = await stack.enter_async_context(as_member(flags.address, endpoint, rules.lease_s))
        node = Node(name, endpoint, directory, RealClock())
        process = TrainerProcess(node, feed, rules, slots=flags.slots, steps=subject.steps, resume=flags.resume)
        say(f"{name}: trainer at {endpoint.address}, model {rules.digest}")
        async with Nursery() as tasks:
            tokens, steps = subject.batch * subject.seq, process.committed_steps()
            log = StepLog(steps, training.optimizer_config, tokens, flags.metrics, say)
            logging = tasks.create_task(log.follow())
            waiting = tasks.create_task(WaitLog(process, feed.held_out, say).follow())
            await until_stop_request(process.run())
            waiting.cancel()
            if process.is_over:
                await logging
            logging.cancel()
        if process.is_over and not wish.empty:
            weights = await fetch(name, training, rules, endpoint, directory, say=say)
            await wish.fulfil(weights, text.tokenizer, say)


async def until_stop_request(work: Coroutine[Any, Any, Any]) -> None:
    """Run this until it ends, or until this process receives a stop request."""
    task = asyncio.ensure_future(work)
    _on_request(task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        if asyncio.current_task().cancelling():
            raise


def _let_go(peer: StagePeer, why: str, say: Callable[[str], None]) -> None:
    say(why)
    peer.leave()


def _on_request(act: Callable[[], Any]) -> None:
    loop = asyncio.get_running_loop()
    for number in asking():
        loop.add_signal_handler(number, partial(_on_signal, number, act))


def _on_signal(number: signal.Signals, act: Callable[[], Any]) -> None:
    if number == signal.SIGHUP:
        hang_up()
    act()


def _own_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"
