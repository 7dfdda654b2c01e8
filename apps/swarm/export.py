"""Export of a whole model: `python -m apps.swarm export`, and `train` at its end with --export and --sample.

An export takes no part in training. It reads what was saved, or fetches the state of each stage as a joining peer does.
"""

import asyncio
import secrets

from apps.common.lm.data.text import Text, read_text
from apps.common.lm.export import FinalOutput, Say, export_saved, say_digest
from apps.common.lm.weights import Weights, check_destination
from apps.swarm.config import SwarmTask
from apps.swarm.flags import Export
from apps.swarm.training import ModelSession, session_of
from pipelined.aio.clock import RealClock
from pipelined.errors import UsageError
from pipelined.membership.connection import LocalMember, connected
from pipelined.membership.directory import CutOff
from pipelined.membership.task_record import read_task
from pipelined.process.reporting.progress import reported_wait
from pipelined.swarm.process.observer import snapshot


async def export(flags: Export, say: Say) -> None:
    """Export saved stages, or the state of a running swarm.

    Raises:
        UsageError: there is no model, its tokenizer differs, or the folder to write holds something else.
    """
    if flags.checkpoint:
        return await export_saved(flags.checkpoint, flags.output, say)
    text = await asyncio.to_thread(read_text, flags.output.text.data, flags.output.text.tokenizer)
    weights = await _fetch_running(flags, text, say)
    await FinalOutput.of(flags.output, weights).write(weights, text.tokenizer, say)


async def _fetch_running(flags: Export, text: Text, say: Say) -> Weights:
    """Fetch the model of a running swarm. Raises UsageError: its text or tokenizer differs."""
    url = flags.directory or flags.coordinator
    async with connected(url, flags.listen) as (endpoint, directory):
        task = SwarmTask.unpack((await read_task(directory, url, say)).value)
        if task.text != text.digest:
            fact = f"this swarm learns from another text (here: {text.digest[:16]}, there: {task.text[:16]})"
            raise UsageError(f"{fact}; give the --data and --tokenizer that its trainers were given")
        session = await asyncio.to_thread(session_of, task)
        if flags.output.to is not None:
            check_destination("--to", flags.output.to, session.model)
        local = LocalMember(f"export-{secrets.token_hex(4)}", endpoint, directory, RealClock())
        return await fetch(local, session, say)


async def fetch(local: LocalMember, session: ModelSession, say: Say) -> Weights:
    """Fetch the parameters of every stage; waits while a stage has no peer.

    Args:
        local: takes no part in training.
    Raises:
        UsageError: the directory does not reply.
    Cost: as `SwarmObserver.snapshot`.
    """
    try:
        async with reported_wait(f"the state of every stage (stages: {session.rules.stages})", say):
            stages = await snapshot(local, session)
    except CutOff as error:
        raise UsageError(f"the directory does not reply ({error}); start it again, and repeat this command") from error
    step = stages[0][0].step
    say(f"fetched all {len(stages)} stages, after {step} steps")
    weights = Weights.of_stages(session.model, [state for _, state in stages])
    await say_digest(weights, step, say)
    return weights
