"""The processes of a swarm that compute, each from its flags to its end: peer and trainer.

SIGTERM, or a terminal that closes, makes a peer hand over its state and leave, and ends a trainer; a process that still
waits for the directory ends, too.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from apps.swarm.config import SwarmTask
from apps.swarm.data import read_task
from apps.swarm.flags import Serve, Train
from apps.swarm.metrics import StepLog
from pipelined.membership.connection import LocalMember
from pipelined.process.stop_request import stop_event

OUT_OF_MEMORY = (
    "let `train` take a smaller --microbatch or --seq, or more --stages, or leave its --delayed-updates and "
    "--exact-sums out"
)
"""What to do where a peer has no memory left."""


async def serve(flags: Serve, say: Callable[[str], None]) -> None:
    """Serve as a peer until a request to leave."""
    from apps.swarm.training import ModelSession, session_of
    from pipelined.swarm.process import roles
    from pipelined.swarm.process.peer_process import open_peer
    from pipelined.swarm.process.session import SwarmAddress

    def session(record: bytes) -> ModelSession:
        task = SwarmTask.unpack(record)
        task.settings.check_stage(flags.stage)
        return session_of(task)

    open_own_peer = partial(open_peer, flags, remedy=OUT_OF_MEMORY)
    address = SwarmAddress(flags.address.url, flags.address.listen, flags.address.name)
    with suppress(roles.Stopped):
        await roles.serve(address, session, open_own_peer, device=flags.device, stop=stop_event(), say=say)


async def train(flags: Train, say: Callable[[str], None]) -> None:
    """Train until the last step is committed, or until a stop request; at the end export and sample, if requested."""
    settings, final = flags.settings, flags.final
    text, task, feed = await asyncio.to_thread(read_task, settings, flags.text)  # before torch is imported

    from apps.common.lm.export import FinalOutput
    from apps.swarm.export import fetch
    from apps.swarm.training import session_of
    from pipelined.swarm.process import roles
    from pipelined.swarm.process.session import SwarmAddress

    session = await asyncio.to_thread(session_of, task)
    output = FinalOutput(final.export, final.sample, final.prompt, settings.seq, settings.seed)
    output.check(session.model)

    async def write(local: LocalMember) -> None:
        if not output.is_empty:
            await output.write(await fetch(local, session, say), text.tokenizer, say)

    job = roles.TrainerJob(
        task=task, session=session, data=feed, steps=settings.steps, slots=flags.slots, resume=flags.resume
    )
    address = SwarmAddress(flags.address.url, flags.address.listen, flags.address.name)
    with (
        StepLog(session.training.optimizer_settings, settings.batch * settings.seq, flags.metrics, say) as steps,
        suppress(roles.Stopped),
    ):
        await roles.train(address, job, write, stop=stop_event(), on_step=steps.log, say=say)
