"""A swarm's process from its parts to its end: a peer that serves, a trainer that trains, a copy of all stages.

The programs and the public interface run their processes here. A process ends by itself, or when an event is set; flags
and signals belong to the programs. Imports torch.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pipelined.actors.device.executor import Executor, TorchExecutor
from pipelined.errors import refuse_below
from pipelined.membership.connection import LocalMember
from pipelined.membership.directory import Directory
from pipelined.membership.task_record import RUN
from pipelined.process.reporting.progress import Say
from pipelined.state.checkpoints.claim import Claim, claim
from pipelined.state.stages.store import DiskStore
from pipelined.state.stages.store_checks import other_text, stages_of_model
from pipelined.swarm.process.logs import PeerLog, WaitLog
from pipelined.swarm.process.observer import SwarmObserver, SwarmSnapshot
from pipelined.swarm.process.processes import PeerProcess, TrainerProcess
from pipelined.swarm.records.committed_steps import StepEvent
from pipelined.swarm.rules import PeerConfig, Rules
from pipelined.swarm.settings import PeerSettings
from pipelined.swarm.stages.planned_memory import stage_bytes
from pipelined.swarm.stages.torch_stage import TorchStage
from pipelined.swarm.stages.training import StageTraining
from transports import Nursery

OUT_OF_MEMORY = (
    "let the trainers cut the model into more stages (`depth=`), or a step into more microbatches (`microbatches=`)"
)
"""What to do where a peer has no memory left, with arguments of `pipelined.swarm.train`."""


@dataclass(frozen=True)
class Session:
    """What all processes of one swarm share, built from its task.

    Args:
        identity: of the model: a checkpoint with another one holds another model.
        text: digest of the data that is trained on; "": not known.
    """

    training: StageTraining
    rules: Rules
    identity: Mapping[str, Any]
    text: str


@dataclass(frozen=True)
class PeerOptions(PeerSettings):
    """The settings of one peer.

    Args:
        remedy: what to do where the device has no memory left.
    Raises:
        UsageError: a number is negative.
    """

    remedy: str = OUT_OF_MEMORY

    def __post_init__(self) -> None:
        refuse_below(0, "save_every", self.save_every)
        refuse_below(0, "grace", self.grace)

    @asynccontextmanager
    async def opened(self, local: LocalMember, session: Session, say: Say) -> AsyncIterator[PeerProcess]:
        """A peer with a device, and a directory of checkpoints that belongs to its swarm; it does not run yet.

        Raises:
            UsageError: another model's stages are saved there, or another swarm, or a pipeline, saves there.
        """
        with ExitStack() as stack:
            store = None
            if (path := self.checkpoint) is not None:
                saved = await asyncio.to_thread(stages_of_model, path, session.identity)
                if fact := await asyncio.to_thread(other_text, path, saved, session.text):
                    say(f"warning: {fact}")
                claimed = stack.enter_context(await claim_for(local.directory, path))
                if claimed.warning:
                    say(f"warning: {claimed.warning}")
                store = DiskStore(path, session.identity, text=session.text, name=local.name)
            executor = TorchExecutor(self.device, local.clock)
            executor.remedy = self.remedy
            stack.callback(executor.close)
            config = PeerConfig(self.stage, self.grace, store, self.save_every)
            say(f"{local.name}: peer at {local.endpoint.address}, model {session.rules.digest}")
            yield torch_peer(local, session, executor, config)


def torch_peer(local: LocalMember, session: Session, executor: Executor, config: PeerConfig) -> PeerProcess:
    """A peer that computes with this executor.

    Where memory runs out the error names the bytes planned for its stage, and those that it keeps for other peers.

    With exact sums this sets torch's threads on the CPU to 1: with more, kernels add in another order.
    """
    if session.training.exact_sums and executor.device == "cpu":
        torch.set_num_threads(1)

    def planned(index: int) -> int:
        held, replica = stage_bytes(session.training, index), process.peer.replica
        saves, on_host = config.store is not None, executor.device == "cpu"
        most = held.most(delayed=session.rules.delayed, saves=saves, on_host=on_host)
        return most + (replica.donor.nbytes if replica and on_host else 0)

    def build(index: int) -> TorchStage:
        executor.owner, executor.planned_memory = f"stage {index}", partial(planned, index)
        return TorchStage(session.training, index, executor.device)

    process = PeerProcess(local, build, session.rules, executor, config)  # calls `build` only where it runs
    return process


async def claim_for(directory: Directory, path: Path) -> Claim:
    """Claim a directory of checkpoints for this swarm.

    Raises:
        UsageError: another swarm, or a pipeline, saves there.
    """
    entry = (await directory.read(RUN)).entries.get(RUN)
    return await asyncio.to_thread(claim, path, entry.value.decode(errors="replace") if entry else "")


async def snapshot(local: LocalMember, session: Session) -> SwarmSnapshot:
    """The state of all stages, on the CPU; see `SwarmObserver.snapshot`."""
    executor = TorchExecutor("cpu", local.clock)
    try:
        return await SwarmObserver(local, partial(TorchStage, session.training), session.rules, executor).snapshot()
    finally:
        executor.close()


async def run_peer(process: PeerProcess, stop: asyncio.Event, say: Say) -> None:
    """Run a peer until `stop` is set: then it hands its state over, and leaves.

    Args:
        say: prints the request to leave, a line whenever the state of the peer changes, and that it left.
    Raises: as `PeerProcess.run`.
    """

    async def leave() -> None:
        await stop.wait()
        say(f"{process.name}: received a request to leave (grace period: {process.grace_s:g} s)")
        process.peer.leave()

    async with Nursery() as tasks:
        watching = [tasks.create_task(leave()), tasks.create_task(PeerLog(process, say).follow())]
        await process.run()
        for task in watching:
            task.cancel()
    say(f"{process.name}: left")


async def run_trainer(
    process: TrainerProcess, stop: asyncio.Event, on_step: Callable[[StepEvent], None], say: Say
) -> bool:
    """Run a trainer until the last step is committed, and evaluated if that is due, or until `stop` is set.

    Args:
        on_step: called with each commit, rollback and evaluation, in order.
        say: prints what the swarm waits for.
    Returns: whether the last step is committed and evaluated.
    Raises: as `TrainerProcess.run`.
    """

    async def follow() -> None:
        async for event in process.committed_steps().follow():
            on_step(event)

    async with Nursery() as tasks:
        following, running = tasks.create_task(follow()), tasks.create_task(process.run())
        watching = [tasks.create_task(_cancel_at(stop, running)), tasks.create_task(WaitLog(process, say).follow())]
        await asyncio.wait([running])
        if not process.is_over:
            following.cancel()
        for task in watching:
            task.cancel()
    return process.is_over


async def _cancel_at(stop: asyncio.Event, task: "asyncio.Task[None]") -> None:
    await stop.wait()
    task.cancel()
