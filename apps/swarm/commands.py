"""The processes of a swarm that compute, each from its flags to its end: peer and trainer.

SIGTERM, or a terminal that closes, makes a peer hand over its state and leave, and ends a trainer; a process that still
waits for the directory ends, too.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack

from apps.lm.data.text import read_text
from apps.swarm.config import Told
from apps.swarm.data import feed_of
from apps.swarm.families import cut_of
from apps.swarm.flags import Serve, Train
from apps.swarm.joining import agree, as_member, claim_for, entered, what_is_trained
from apps.swarm.metrics import StepLog
from apps.swarm.peer_log import PeerLog
from apps.swarm.saved import other_text, saved_of
from apps.swarm.waiting import WaitLog, telling
from pipelined.actors.executor import TorchExecutor
from pipelined.aio.clock import RealClock
from pipelined.aio.nursery import Nursery
from pipelined.membership.client import Node
from pipelined.process.stop_request import on_stop_request, until_stop_request
from pipelined.state.store import DiskStore
from pipelined.swarm.config import PeerConfig
from pipelined.swarm.peer.peer import StagePeer


async def serve(flags: Serve, say: Callable[[str], None]) -> None:
    """Serve as a peer until a request to leave."""
    async with AsyncExitStack() as stack:
        endpoint, directory = await stack.enter_async_context(entered(flags.address))
        from apps.swarm.session import Session
        from apps.swarm.training import check_device

        await asyncio.to_thread(check_device, flags.device)
        trained = await what_is_trained(directory, flags.address, say)
        trained.subject.check_stage(flags.stage)
        session = await asyncio.to_thread(Session.of, trained)
        identity, rules, clock = session.training.model.identity(), session.rules, RealClock()
        if flags.checkpoint:
            found = await asyncio.to_thread(saved_of, flags.checkpoint, identity)
            if fact := await asyncio.to_thread(other_text, flags.checkpoint, found, trained.text):
                say(f"warning: {fact}")
            claimed = stack.enter_context(await claim_for(directory, flags.checkpoint))
            if claimed.warning:
                say(f"warning: {claimed.warning}")
        directory = await stack.enter_async_context(as_member(flags.address, endpoint, rules.lease_s))
        device = TorchExecutor(flags.device, clock)
        name = flags.address.name or _own_name()

        store = DiskStore(flags.checkpoint, identity, text=trained.text) if flags.checkpoint else None
        config = PeerConfig(flags.stage, flags.grace, store, flags.save_every)
        process = session.peer(Node(name, endpoint, directory, clock), device, config)
        say(f"{name}: peer at {endpoint.address}, model {rules.digest}")
        on_stop_request(
            lambda: _let_go(process.peer, f"{name}: received a request to leave (grace period: {flags.grace:g} s)", say)
        )
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
        from apps.swarm.session import Session

        session = await asyncio.to_thread(Session.of, mine)
        wish = Wish(flags.export, flags.sample, flags.prompt, subject.seq, subject.seed)
        wish.check(session.training.model)
        rules, name = session.rules, flags.address.name or _own_name()
        async with telling(flags.address.description, say):
            await agree(directory, mine)
        directory = await stack.enter_async_context(as_member(flags.address, endpoint, rules.lease_s))
        node = Node(name, endpoint, directory, RealClock())
        process = session.trainer(node, feed, slots=flags.slots, resume=flags.resume)
        say(f"{name}: trainer at {endpoint.address}, model {rules.digest}")
        async with Nursery() as tasks:
            tokens, steps = subject.batch * subject.seq, process.committed_steps()
            log = StepLog(steps, session.training.optimizer_config, tokens, flags.metrics, say)
            logging = tasks.create_task(log.follow())
            waiting = tasks.create_task(WaitLog(process, feed.held_out, say).follow())
            await until_stop_request(process.run())
            waiting.cancel()
            if process.is_over:
                await logging
            logging.cancel()
        if process.is_over and not wish.empty:
            weights = await fetch(name, session, endpoint, directory, say)
            await wish.fulfil(weights, text.tokenizer, say)


def _let_go(peer: StagePeer, why: str, say: Callable[[str], None]) -> None:
    say(why)
    peer.leave()


def _own_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"
