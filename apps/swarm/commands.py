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
from apps.swarm.config import SwarmTask, publish
from apps.swarm.data import feed_of
from apps.swarm.families import cut_of
from apps.swarm.flags import Serve, Train
from apps.swarm.metrics import StepLog
from pipelined.actors.executor import TorchExecutor
from pipelined.aio.clock import RealClock
from pipelined.membership.client import Node
from pipelined.process.stop_request import on_stop_request
from pipelined.state.saved import other_text, saved_of
from pipelined.state.store import DiskStore
from pipelined.swarm.config import PeerConfig
from pipelined.swarm.process.joining import claim_for, connected, described, member_directory, read_task
from pipelined.swarm.process.logs import reported_wait
from pipelined.swarm.process.processes import TrainerProcess


async def serve(flags: Serve, say: Callable[[str], None]) -> None:
    """Serve as a peer until a request to leave."""
    address = flags.address
    async with AsyncExitStack() as stack:
        endpoint, directory = await stack.enter_async_context(connected(address.url, address.listen))
        from apps.swarm.training import session_of
        from pipelined.swarm.process.session import check_device, run_peer, torch_peer

        await asyncio.to_thread(check_device, flags.device)
        task = SwarmTask.unpack(await read_task(directory, address.url, say))
        task.subject.check_stage(flags.stage)
        session = await asyncio.to_thread(session_of, task)
        identity, rules, clock = session.model.identity(), session.rules, RealClock()
        if flags.checkpoint:
            found = await asyncio.to_thread(saved_of, flags.checkpoint, identity)
            if fact := await asyncio.to_thread(other_text, flags.checkpoint, found, task.text):
                say(f"warning: {fact}")
            claimed = stack.enter_context(await claim_for(directory, flags.checkpoint))
            if claimed.warning:
                say(f"warning: {claimed.warning}")
        directory = await stack.enter_async_context(member_directory(address.url, endpoint, rules.lease_s))
        device = TorchExecutor(flags.device, clock)
        stack.callback(device.close)
        name = address.name or own_name()

        store = DiskStore(flags.checkpoint, identity, text=task.text) if flags.checkpoint else None
        config = PeerConfig(flags.stage, flags.grace, store, flags.save_every)
        process = torch_peer(Node(name, endpoint, directory, clock), session.training, rules, device, config)
        say(f"{name}: peer at {endpoint.address}, model {rules.digest}")
        reason = f"{name}: received a request to leave (grace period: {flags.grace:g} s)"
        await run_peer(process, _stop_request(reason, say), say)
        say(f"{name}: left")


async def train(flags: Train, say: Callable[[str], None]) -> None:
    """Train until the last step is committed, or until a stop request; at the end export and sample, if requested."""
    subject, address = flags.subject, flags.address
    text = await asyncio.to_thread(read_text, flags.data, flags.tokenizer)
    feed = feed_of(text, subject.microbatch, subject.seq, subject.batch // subject.microbatch, subject.seed)
    mine = SwarmTask(subject, text.tokenizer.vocab_size, text.digest, feed.held_out)
    cut_of(subject, mine.vocabulary)  # before torch is imported
    async with AsyncExitStack() as stack:
        endpoint, directory = await stack.enter_async_context(connected(address.url, address.listen))
        from apps.swarm.export import FinalOutput, fetch
        from apps.swarm.training import session_of
        from pipelined.swarm.process.session import run_trainer

        session = await asyncio.to_thread(session_of, mine)
        output = FinalOutput(flags.export, flags.sample, flags.prompt, subject.seq, subject.seed)
        output.check(session.model)
        rules, name = session.rules, address.name or own_name()
        async with reported_wait(described(address.url), say):
            await publish(directory, mine)
        directory = await stack.enter_async_context(member_directory(address.url, endpoint, rules.lease_s))
        node = Node(name, endpoint, directory, RealClock())
        process = TrainerProcess(node, feed, rules, slots=flags.slots, steps=subject.steps, resume=flags.resume)
        say(f"{name}: trainer at {endpoint.address}, model {rules.digest}")
        with StepLog(session.training.optimizer_config, subject.batch * subject.seq, flags.metrics, say) as steps:
            done = await run_trainer(process, _stop_request("", say), steps.log, say)
        if done and not output.is_empty:
            weights = await fetch(name, session, endpoint, directory, say)
            await output.write(weights, text.tokenizer, say)


def own_name() -> str:
    """The name of a process that is given none: HOST-PID."""
    return f"{socket.gethostname()}-{os.getpid()}"


def _stop_request(reason: str, say: Callable[[str], None]) -> asyncio.Event:
    """An event that a stop request sets from now on, after it has printed the reason."""
    event = asyncio.Event()

    def stop() -> None:
        if reason:
            say(reason)
        event.set()

    on_stop_request(stop)
    return event
