"""One rank of `--schedule swarm`: the training, the same on all ranks, and this rank's peer and trainer."""

from dataclasses import dataclass, replace

from apps.gpt2.swarm.job import SwarmJob
from apps.lm.data.text import Text
from apps.swarm.config import SwarmTask
from apps.swarm.data import MicrobatchFeed
from apps.swarm.training import ModelSession, session_of
from apps.swarm.weights_store import WeightsStore
from pipelined.actors.executor import TorchExecutor
from pipelined.aio.clock import RealClock
from pipelined.directory import Directory
from pipelined.membership.connection import connected
from pipelined.membership.node import Node
from pipelined.membership.task_record import publish_task
from pipelined.process.launch import Launch
from pipelined.state.store import CheckpointStore, DiskStore
from pipelined.state.versions import SavedStage, common_step
from pipelined.swarm.config import PeerConfig
from pipelined.swarm.process.processes import PeerProcess, TrainerProcess
from pipelined.swarm.process.session import torch_peer
from pipelined.swarm.records.steps import HEAD, Commit
from transports import Transport
from transports.rpc import Endpoint

STOP, STOPPED, DONE = ("swarm", "halt"), ("swarm", "halted"), ("swarm", "over")
"""Tags: rank 0 requests that training stops; a rank confirms; rank 0 has fetched the model."""


@dataclass(frozen=True, kw_only=True)
class Rank:
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
    feed: MicrobatchFeed
    task: SwarmTask
    session: ModelSession
    store: CheckpointStore | None
    start: SavedStage | None
    executor: TorchExecutor

    async def begin(self, url: str, swarm: str = "") -> None:
        """Write to the directory what is trained, and the step at which it begins.

        Args:
            url: of the directory.
            swarm: the name under which this job claimed its directory of checkpoints. Default: a random name.
        """
        head = Commit(self.session.rules.stages, self.session.rules.digest)
        if self.start is not None:
            head = replace(head, step=self.start.step, lineage=self.start.lineage)
        async with connected(url) as (_, directory):
            await publish_task(directory, self.task, swarm)
            await directory.transact({HEAD: 0}, {HEAD: head.pack()})

    def peer(self, endpoint: Endpoint, directory: Directory) -> PeerProcess:
        """This rank's peer. It begins with its own stage, and later moves to the stage that needs it most."""
        rank, config = self.transport.rank, self.job.config
        every = config.save_every if config.checkpoint else 0
        peer_config = PeerConfig(self.job.stage_of(rank), store=self.store, save_every=every)
        node = self.node(f"rank{rank}", endpoint, directory)
        return torch_peer(node, self.session, self.executor, peer_config)

    @property
    def trains(self) -> bool:
        return self.job.trains(self.transport.rank)

    def trainer(self, endpoint: Endpoint, directory: Directory) -> TrainerProcess:
        """This rank's trainer."""
        node, steps = self.node(f"trainer{self.transport.rank}", endpoint, directory), self.job.subject.steps
        return TrainerProcess(node, self.feed, self.session.rules, steps=steps)

    def node(self, name: str, endpoint: Endpoint, directory: Directory) -> Node:
        """A process of the swarm on this rank."""
        return Node(name, endpoint, directory, RealClock())


def prepare(transport: Transport, job: SwarmJob, launch: Launch, text: Text) -> Rank:
    """Prepare a rank; blocks.

    Raises:
        UsageError: the text is too short, the model cannot be cut so, or the weights to begin with cannot be read.
    """
    feed = job.feed(text)
    task = SwarmTask(job.subject, job.model.vocab, text.digest, feed.held_out)
    session, store = session_of(task), _store(job, text)
    executor = TorchExecutor.of_rank(
        launch.ranks_here(transport.world_size), transport, share_devices=launch.share_devices
    )
    start = None if store is None else common_step(store.saved_stages())
    return Rank(
        transport=transport,
        job=job,
        text=text,
        feed=feed,
        task=task,
        session=session,
        store=store,
        start=start,
        executor=executor,
    )


def _store(job: SwarmJob, text: Text) -> CheckpointStore | None:
    config = job.config
    disk = DiskStore(config.checkpoint, job.model.identity(), config.keep, text.digest) if config.checkpoint else None
    return disk if config.init is None else WeightsStore(config.init, job.subject.stages, disk)
