"""The two roles of a process that joins a swarm, from its address to its end: a peer serves, a trainer trains.

The programs and the public interface call these functions; flags and signals stay with them. Imports torch.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, TypeVar

from pipelined.actors.device.torch_devices import check_device
from pipelined.membership.addresses import described
from pipelined.membership.connection import LocalMember, connected, local_member
from pipelined.membership.task_record import TaskRecord, publish_task, read_task
from pipelined.process.reporting.progress import Say, reported_wait
from pipelined.swarm.process.peer_process import PeerProcess, run_peer
from pipelined.swarm.process.session import SwarmAddress, SwarmSession
from pipelined.swarm.process.trainer_process import TrainerProcess, run_trainer
from pipelined.swarm.records.committed_steps import StepEvent
from pipelined.swarm.settings import TrainerSettings
from pipelined.swarm.trainer.trainer import Data

T = TypeVar("T")


class Stopped(Exception):
    """A stop request arrived before the process had joined the swarm."""


@dataclass(frozen=True, kw_only=True)
class TrainerJob(TrainerSettings):
    """What a trainer trains.

    Args:
        task: the directory's record; another one there is refused.
        given_as: what the user gave, for that refusal: flags or arguments.
        steps: the step at which the run is over.
    """

    task: TaskRecord
    session: SwarmSession
    data: Data
    steps: int
    given_as: str = "flags"


async def serve(
    address: SwarmAddress,
    session_of: Callable[[bytes], SwarmSession],
    open_peer: Callable[[LocalMember, SwarmSession, Say], AbstractAsyncContextManager[PeerProcess]],
    *,
    device: str,
    stop: asyncio.Event,
    say: Say,
) -> None:
    """Join a swarm as a peer, and serve until `stop` is set.

    Args:
        session_of: builds the session from the directory's record of what is trained; runs in a thread.
        open_peer: a block with a peer, which does not run yet: `peer_process.open_peer` of a peer's settings.
        device: where the peer computes: "cpu", "cuda:0", ...
    Raises:
        Stopped: `stop` was set before the directory had a record.
        UsageError: no such device, or the session or the directory of checkpoints does not fit. Else as `run_peer`.
    """
    await asyncio.to_thread(check_device, device)
    async with connected(address.url, address.listen) as (endpoint, directory):
        record = await _work_until(stop, read_task(directory, address.url, say))
        session = await asyncio.to_thread(session_of, record.value)
        async with local_member(address.url, endpoint, address.name, session.rules.lease_s) as local:
            async with open_peer(local, session, say) as process:
                await run_peer(process, stop, say)


@dataclass(frozen=True)
class JoinedTrainer:
    """A trainer that has joined its swarm, and does not run yet.

    Args:
        observer: an observer of the swarm, at the same endpoint, which can fetch the model.
    """

    process: TrainerProcess
    observer: LocalMember


@asynccontextmanager
async def joined_trainer(
    address: SwarmAddress, job: TrainerJob, *, stop: asyncio.Event, say: Say
) -> AsyncIterator[JoinedTrainer]:
    """Join a swarm as a trainer.

    Raises:
        Stopped: `stop` was set before the directory replied.
        UsageError: the directory has another training.
    """
    rules = job.session.rules
    async with connected(address.url, address.listen) as (endpoint, directory):
        async with reported_wait(described(address.url), say):
            await _work_until(stop, publish_task(directory, job.task, settings=job.given_as))
        async with local_member(address.url, endpoint, address.name, rules.lease_s) as local:
            process = TrainerProcess(local, job.data, rules, slots=job.slots, steps=job.steps, resume=job.resume)
            say(f"{local.name}: trainer at {endpoint.address}, model {rules.digest}")
            yield JoinedTrainer(process, LocalMember(f"{local.name}-{token_hex(4)}", endpoint, directory, local.clock))


async def train(
    address: SwarmAddress,
    job: TrainerJob,
    finish: Callable[[LocalMember], Coroutine[Any, Any, T]],
    *,
    stop: asyncio.Event,
    on_step: Callable[[StepEvent], None],
    say: Say,
) -> T | None:
    """Join a swarm as a trainer, train until the last step, then finish; stop where `stop` is set.

    Args:
        finish: called after the last step with an observer of the swarm, which can fetch the model; `stop` cancels it.
        on_step: as in `run_trainer`.
    Returns: the result of `finish`; None: it was stopped before.
    Raises: as `joined_trainer` and `run_trainer`.
    """
    async with joined_trainer(address, job, stop=stop, say=say) as trainer:
        if not await run_trainer(trainer.process, stop, on_step, say):
            return None
        try:
            return await _work_until(stop, finish(trainer.observer))
        except Stopped:
            say("stopped before the model was fetched and written")
            return None


async def _work_until(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """The result of this work. Raises Stopped: the event was set before."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Stopped
        return working.result()
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)
