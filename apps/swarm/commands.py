"""The processes of a swarm that compute, each from its flags to its end: peer and trainer.

SIGTERM, or a terminal that closes, makes a peer hand over its state and leave, and ends a trainer; a process that still
waits for the directory ends, too.
"""

import asyncio
from collections.abc import Callable

from apps.lm.data.text import read_text
from apps.swarm.config import SwarmTask
from apps.swarm.data import feed_of
from apps.swarm.families import cut_of
from apps.swarm.flags import Serve, Train
from apps.swarm.metrics import StepLog
from pipelined.aio.progress import reported_wait
from pipelined.membership.addresses import described
from pipelined.membership.connection import connected, member_node
from pipelined.membership.task_record import publish_task, read_task
from pipelined.process.stop_request import on_stop_request
from pipelined.swarm.process.processes import TrainerProcess


async def serve(flags: Serve, say: Callable[[str], None]) -> None:
    """Serve as a peer until a request to leave."""
    url = flags.address.url
    async with connected(url, flags.address.listen) as (endpoint, directory):
        from apps.swarm.training import session_of
        from pipelined.swarm.process.session import PeerOptions, check_device, opened_peer, run_peer

        await asyncio.to_thread(check_device, flags.device)
        task = SwarmTask.unpack(await read_task(directory, url, say))
        task.subject.check_stage(flags.stage)
        session = await asyncio.to_thread(session_of, task)
        options = PeerOptions(flags.stage, flags.device, flags.checkpoint, flags.save_every, flags.grace)
        async with member_node(url, endpoint, flags.address.name, session.rules.lease_s) as node:
            async with opened_peer(node, session, options, say) as process:
                reason = f"{node.name}: received a request to leave (grace period: {flags.grace:g} s)"
                await run_peer(process, _stop_request(reason, say), say)


async def train(flags: Train, say: Callable[[str], None]) -> None:
    """Train until the last step is committed, or until a stop request; at the end export and sample, if requested."""
    subject, url = flags.subject, flags.address.url
    text = await asyncio.to_thread(read_text, flags.text.data, flags.text.tokenizer)
    feed = feed_of(text, subject.microbatch, subject.seq, subject.batch // subject.microbatch, subject.seed)
    mine = SwarmTask(subject, text.tokenizer.vocab_size, text.digest, feed.held_out)
    cut_of(subject, mine.vocabulary)  # before torch is imported
    async with connected(url, flags.address.listen) as (endpoint, directory):
        from apps.lm.export import FinalOutput
        from apps.swarm.export import fetch
        from apps.swarm.training import session_of
        from pipelined.swarm.process.session import run_trainer

        session = await asyncio.to_thread(session_of, mine)
        output = FinalOutput(flags.export, flags.sample, flags.prompt, subject.seq, subject.seed)
        output.check(session.model)
        rules = session.rules
        async with reported_wait(described(url), say):
            await publish_task(directory, mine)
        async with member_node(url, endpoint, flags.address.name, rules.lease_s) as node:
            process = TrainerProcess(node, feed, rules, slots=flags.slots, steps=subject.steps, resume=flags.resume)
            say(f"{node.name}: trainer at {endpoint.address}, model {rules.digest}")
            with StepLog(session.training.optimizer_config, subject.batch * subject.seq, flags.metrics, say) as steps:
                done = await run_trainer(process, _stop_request("", say), steps.log, say)
            if done and not output.is_empty:
                weights = await fetch(node.name, session, endpoint, directory, say)
                await output.write(weights, text.tokenizer, say)


def _stop_request(reason: str, say: Callable[[str], None]) -> asyncio.Event:
    """An event that a stop request sets from now on, after it has printed the reason."""
    event = asyncio.Event()

    def stop() -> None:
        if reason:
            say(reason)
        event.set()

    on_stop_request(stop)
    return event
