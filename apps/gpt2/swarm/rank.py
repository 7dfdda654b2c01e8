"""One rank of `--schedule swarm`: what its peer and its trainer take, the same on all ranks but for names."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from apps.common.lm.data.text import Text
from apps.gpt2.swarm.job import SwarmJob
from apps.gpt2.swarm.report import ActiveTime
from apps.swarm.training import ModelSession, session_of
from apps.swarm.weights_store import WeightsStore
from pipelined.actors.device.executor import TorchExecutor
from pipelined.aio.tasks import cancel_and_wait
from pipelined.membership.connection import LocalMember, connected
from pipelined.membership.task_record import publish_task
from pipelined.process.launch import Launch
from pipelined.process.reporting.progress import Say
from pipelined.state.stages.store import CheckpointStore, DiskStore
from pipelined.state.stages.versions import SavedStage, common_step
from pipelined.swarm.peer.components import PeerSetup
from pipelined.swarm.process.peer_process import PeerProcess, torch_peer
from pipelined.swarm.process.roles import TrainerJob
from pipelined.swarm.process.session import SwarmAddress, SwarmSession
from pipelined.swarm.records.steps import HEAD, Head
from transports import Nursery, Transport

STOP, STOPPED, ENDED = ("swarm", "halt"), ("swarm", "halted"), ("swarm", "over")
"""Tags: rank 0 requests that training stops; a rank confirms; rank 0 has fetched the model."""

PEER, TRAINER = "rank", "trainer"
"""What the names of a rank's peer and of its trainer begin with."""

OUT_OF_MEMORY = "make microbatches smaller (`microbatch=`) or stages more (`depth=`)"
"""What to do where a rank has no memory left."""


@dataclass(frozen=True, kw_only=True)
class SwarmRank:
    """One rank, prepared.

    Args:
        session: the same on all ranks.
        store: where its peer saves, and finds what was saved.
        start: the latest step that all stages have in the store, from which the swarm continues; None: step 0.
        executor: runs the computations of its peer.
    """

    transport: Transport
    job: SwarmJob
    text: Text
    trainer_job: TrainerJob
    session: ModelSession
    store: CheckpointStore | None
    start: SavedStage | None
    executor: TorchExecutor
    active_time: ActiveTime

    async def publish(self, url: str, run_id: str = "") -> None:
        """Write to the directory what is trained, and the step at which it begins.

        Args:
            url: of the directory.
            run_id: the name under which this job claimed its directory of checkpoints. Default: a random name.
        """
        head = Head(self.session.rules.stages, self.session.rules.digest)
        if self.start is not None:
            head = replace(head, step=self.start.step, lineage=self.start.lineage)
        async with connected(url) as (_, directory):
            await publish_task(directory, self.trainer_job.task, run_id)
            await directory.transact({HEAD: 0}, {HEAD: head.pack()})

    def address(self, role: str, url: str) -> SwarmAddress:
        """The address of this rank's peer, or of its trainer."""
        return SwarmAddress(url, name=_name(role, self.transport.rank))

    @property
    def trains(self) -> bool:
        """Whether a trainer runs beside its peer."""
        return self.job.trains(self.transport.rank)

    @asynccontextmanager
    async def open_peer(self, local: LocalMember, session: SwarmSession, say: Say) -> AsyncIterator[PeerProcess]:
        """A block with its peer, which begins with its own stage, and later moves to the stage that needs it most."""
        config = self.job.config
        stage = self.job.stage_of(self.transport.rank)
        save_every = config.save_every if config.checkpoint else 0
        process = torch_peer(local, session, self.executor, PeerSetup(stage, store=self.store, save_every=save_every))
        async with Nursery() as tasks:
            sending = tasks.create_task(self.active_time.send(process.view))
            yield process
            await cancel_and_wait(sending)


def prepare(transport: Transport, job: SwarmJob, launch: Launch, text: Text) -> SwarmRank:
    """Prepare a rank; blocks.

    Raises:
        UsageError: the text is too short, the model cannot be cut so, or the weights to begin with cannot be read.
    """
    task, feed = job.task_and_feed(text)
    session = session_of(task)
    store = _store(job, session, _name(PEER, transport.rank))
    executor = TorchExecutor.of_rank(transport, share_devices=launch.share_devices)
    executor.configure(remedy=OUT_OF_MEMORY)
    return SwarmRank(
        transport=transport,
        job=job,
        text=text,
        trainer_job=TrainerJob(task=task, session=session, data=feed, steps=job.settings.steps),
        session=session,
        store=store,
        start=None if store is None else common_step(store.saved_stages()),
        executor=executor,
        active_time=ActiveTime(transport, executor),
    )


def _name(role: str, rank: int) -> str:
    return f"{role}{rank}"


def _store(job: SwarmJob, session: ModelSession, name: str) -> CheckpointStore | None:
    config, disk = job.config, None
    if config.checkpoint is not None:
        disk = DiskStore(config.checkpoint, session.identity, config.keep, session.text, name=name)
    return disk if config.init is None else WeightsStore(config.init, job.settings.stages, disk)
