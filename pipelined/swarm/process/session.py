"""A swarm's process from its parts to its end: a peer that serves, a trainer that trains, a copy of all stages.

The programs and the public interface run their processes here. A process ends by itself, or when an event is set; flags
and signals belong to the programs. Imports torch.
"""

import asyncio
from collections.abc import Callable
from functools import partial

import torch

from pipelined.actors.executor import TorchExecutor
from pipelined.aio.nursery import Nursery
from pipelined.errors import UsageError
from pipelined.membership.client import Node
from pipelined.swarm.config import PeerConfig, Rules
from pipelined.swarm.process.logs import PeerLog, Say, WaitLog
from pipelined.swarm.process.observer import SwarmObserver, SwarmSnapshot
from pipelined.swarm.process.processes import PeerProcess, TrainerProcess
from pipelined.swarm.records.committed_steps import StepEvent
from pipelined.swarm.stages.torch_stage import TorchStage
from pipelined.swarm.stages.training import StageTraining


def check_device(name: str) -> None:
    """Refuse a device that this machine does not have.

    Raises:
        UsageError: the message lists its devices.
    """
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        here = ", ".join(["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))])
        fact = f"no device here is called {name!r} ({str(error).splitlines()[0]})"
        raise UsageError(f"{fact}; take one of {here}") from error


def torch_peer(
    node: Node, training: StageTraining, rules: Rules, executor: TorchExecutor, config: PeerConfig
) -> PeerProcess:
    """A peer that computes with this executor."""
    build = partial(TorchStage, training, device=executor.device)
    return PeerProcess(node, build, rules, executor, config)


async def snapshot(node: Node, training: StageTraining, rules: Rules) -> SwarmSnapshot:
    """The state of all stages, on the CPU; see `SwarmObserver.snapshot`."""
    executor = TorchExecutor("cpu", node.clock)
    try:
        return await SwarmObserver(node, partial(TorchStage, training), rules, executor).snapshot()
    finally:
        executor.close()


async def run_peer(process: PeerProcess, stop: asyncio.Event, say: Say | None = None) -> None:
    """Run a peer until `stop` is set: then it hands its state over, and leaves.

    Args:
        say: prints a line whenever the state of the peer changes; None: nothing is printed.
    Raises: as `PeerProcess.run`.
    """

    async def leave() -> None:
        await stop.wait()
        process.peer.leave()

    async with Nursery() as tasks:
        watching = [tasks.create_task(leave())]
        if say is not None:
            watching.append(tasks.create_task(PeerLog(process, say).follow()))
        await process.run()
        for task in watching:
            task.cancel()


async def run_trainer(
    process: TrainerProcess, stop: asyncio.Event, on_step: Callable[[StepEvent], None], say: Say | None = None
) -> bool:
    """Run a trainer until the last step is committed, and evaluated if that is due, or until `stop` is set.

    Args:
        on_step: called with each commit, rollback and evaluation, in order.
        say: prints what the swarm waits for; None: nothing is printed.
    Returns: whether the last step is committed and evaluated.
    Raises: as `TrainerProcess.run`.
    """

    async def follow() -> None:
        async for event in process.committed_steps().follow():
            on_step(event)

    async with Nursery() as tasks:
        following, running = tasks.create_task(follow()), tasks.create_task(process.run())
        watching = [tasks.create_task(_cancel_at(stop, running))]
        if say is not None:
            watching.append(tasks.create_task(WaitLog(process, say).follow()))
        await asyncio.wait([running])
        if not process.is_over:
            following.cancel()
        for task in watching:
            task.cancel()
    return process.is_over


async def _cancel_at(stop: asyncio.Event, task: "asyncio.Task[None]") -> None:
    await stop.wait()
    task.cancel()
