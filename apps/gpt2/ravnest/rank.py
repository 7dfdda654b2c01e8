"""One rank of `--schedule ravnest`: its node, and what that offers."""

import asyncio
from dataclasses import dataclass, replace
from typing import TypeVar

from apps.common.lm.data.text import Text
from apps.gpt2.ravnest.job import RavnestJob
from apps.ravnest.flags.config import RavnestTask
from apps.ravnest.node_setup import planned_places
from apps.ravnest.offer import NOT_MEASURED, measure_own_line, measure_speed
from collectives.objects import broadcast_object, gather_objects
from pipelined.actors.agree import AgreedError, agree
from pipelined.actors.device.executor import TorchExecutor
from pipelined.actors.device.host_memory import free_memory
from pipelined.errors import UsageError
from pipelined.membership.connection import LocalMember, connected
from pipelined.membership.task_record import publish_task
from pipelined.process.reporting.progress import Say
from pipelined.ravnest.node.node import Capacity
from pipelined.ravnest.node.ravnest_training import RavnestTraining
from pipelined.ravnest.node_process import NodeSession, run_node
from pipelined.ravnest.stage.saving import ParameterStore, SaveSettings
from transports import Transport

STOP, ENDED = ("ravnest", "stop"), ("ravnest", "over")
"""Tags: a rank requests that training stops; rank 0 says that it is over, and has fetched the model."""
OUT_OF_MEMORY = (
    "make microbatches smaller (`microbatch=`) or fewer at a time (`ahead=`), clusters fewer (`clusters=`), so that "
    "each has more nodes, or start more ranks"
)
"""What to do where a rank has no memory left."""
T = TypeVar("T", int, float)


@dataclass(frozen=True, kw_only=True)
class NodeRank:
    """One rank, prepared.

    Args:
        capacity: what its node offers, but for its line where there are several machines: that is measured.
        store: where its node saves; None: nowhere.
        run: unique name of this job, or of the one that it resumes.
        resumes: whether training goes on from a save.
    """

    transport: Transport
    job: RavnestJob
    text: Text
    task: RavnestTask
    training: RavnestTraining
    executor: TorchExecutor
    capacity: Capacity
    store: ParameterStore | None
    run: str
    resumes: bool

    async def publish(self, url: str) -> None:
        """Write to the directory what is trained."""
        async with connected(url) as (_, directory):
            await publish_task(directory, self.task, self.run)

    async def serve(self, local: LocalMember, url: str, revision: int, say: Say) -> None:
        """Serve as a node until cancelled. Raises UsageError: the training diverged."""
        session = NodeSession(
            training=self.training,
            revision=revision,
            planned_places=planned_places(self.task, saves=self.store is not None),
            lease_s=self.task.settings.lease,
            saving=SaveSettings(self.store, 1, self.run) if self.store else None,
        )
        several = len(set(self.transport.nodes)) > 1
        line = (await measure_own_line(local, url) if several else None) or NOT_MEASURED
        capacity = replace(self.capacity, bandwidth=line.rate, delay=line.delay)
        try:
            await run_node(local, session, self.executor, capacity, say)
        except AgreedError as error:  # that of one cluster's ranks
            raise UsageError(str(error)) from error


async def capacity_of(
    transport: Transport, task: RavnestTask, training: RavnestTraining, executor: TorchExecutor
) -> Capacity:
    """A share of its machine's memory, and its speed: the same on all ranks of a machine, so that plans are equal."""
    free_bytes = await asyncio.to_thread(free_memory) // len(transport.ranks_here)
    ram = await _least_on_machine(transport, "free memory", free_bytes)
    flops = await agree(transport, "own speed", measure_speed(task, training, ram, executor))
    return Capacity(ram, NOT_MEASURED.rate, await _least_on_machine(transport, "speed", flops))


async def _least_on_machine(transport: Transport, what: str, value: T) -> T:
    """The least of all ranks of a machine."""
    values = await broadcast_object(transport, f"every {what}", await gather_objects(transport, what, value))
    return min(values[rank] for rank in transport.ranks_here)
