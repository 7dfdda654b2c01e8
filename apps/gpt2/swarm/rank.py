"""One rank of `--schedule swarm`: the training, the same on all ranks, and this rank's peer and trainer."""

from dataclasses import dataclass, replace

from apps.gpt2.swarm.job import SwarmJob
from apps.lm.data.text import Text
from apps.swarm.address import SwarmAddress
from apps.swarm.config import Told
from apps.swarm.data import MicrobatchFeed, feed_of
from apps.swarm.joining import agree, entered
from apps.swarm.session import Session
from apps.swarm.weights_store import WeightsStore
from pipelined.actors.executor import TorchExecutor
from pipelined.aio.clock import RealClock
from pipelined.directory import Directory
from pipelined.membership.client import Node
from pipelined.process.launch import Launch
from pipelined.state.store import CheckpointStore, DiskStore
from pipelined.state.versions import SavedStage, common_step
from pipelined.swarm.config import PeerConfig
from pipelined.swarm.processes import PeerProcess, TrainerProcess
from pipelined.swarm.records import HEAD, Commit
from transports import Transport
from transports.rpc import Endpoint


@dataclass(frozen=True)
class Rank:
    """One rank, prepared.

    Args:
        session: the same on all ranks.
        store: where its peer saves, and finds what was saved.
        begun: the latest step that all stages have in the store, from which the swarm continues; None: it begins.
        executor: runs the computations of its peer.
    """

    transport: Transport
    job: SwarmJob
    text: Text
    feed: MicrobatchFeed
    session: Session
    store: CheckpointStore | None
    begun: SavedStage | None
    executor: TorchExecutor

    @property
    def trains(self) -> bool:
        return self.job.trains(self.transport.rank)

    async def begin(self, address: str, swarm: str = "") -> None:
        """Write to the directory what is trained, and the step at which it begins.

        Args:
            address: of the directory.
            swarm: the name under which this job claimed its directory of checkpoints. Default: a random name.
        """
        head = Commit(self.session.rules.stages, self.session.rules.digest)
        if self.begun is not None:
            head = replace(head, step=self.begun.step, lineage=self.begun.lineage)
        async with entered(SwarmAddress(coordinator=address)) as (_, directory):
            await agree(directory, self.session.told, swarm)
            await directory.transact({HEAD: 0}, {HEAD: head.pack()})

    def peer(self, endpoint: Endpoint, directory: Directory) -> PeerProcess:
        """This rank's peer. It begins with its own stage, and later moves to the stage that needs it most."""
        rank, config = self.transport.rank, self.job.config
        every = config.save_every if config.checkpoint else 0
        peer_config = PeerConfig(self.job.stage_of(rank), store=self.store, save_every=every)
        return self.session.peer(Node(f"rank{rank}", endpoint, directory, RealClock()), self.executor, peer_config)

    def trainer(self, endpoint: Endpoint, directory: Directory) -> TrainerProcess:
        """This rank's trainer."""
        return self.session.trainer(Node(f"trainer{self.transport.rank}", endpoint, directory, RealClock()), self.feed)


def prepare(transport: Transport, job: SwarmJob, launch: Launch, text: Text) -> Rank:
    """Prepare a rank; blocks.

    Raises:
        UsageError: the text is too short, the model cannot be cut so, or the weights to begin with cannot be read.
    """
    subject = job.subject
    feed = feed_of(text, subject.microbatch, subject.seq, subject.batch // subject.microbatch, subject.seed)
    told = Told(subject, job.model.vocab, text.digest, feed.held_out)
    session, store = Session.of(told), _store(job, text)
    executor = TorchExecutor.of_rank(launch.local_rank, launch.local_size or transport.world_size, transport)
    begun = None if store is None else common_step(store.saved_stages())
    return Rank(transport, job, text, feed, session, store, begun, executor)


def _store(job: SwarmJob, text: Text) -> CheckpointStore | None:
    config = job.config
    told = job.model.identity(), config.keep, text.digest
    disk = DiskStore(config.checkpoint, *told) if config.checkpoint else None
    return disk if config.init is None else WeightsStore(config.init, job.subject.stages, disk)
