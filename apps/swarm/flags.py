"""The flags of each command of a swarm: dataclasses that make the command line. No torch.

What is trained belongs to no command; see `apps.swarm.config`.
"""

from dataclasses import dataclass, field
from pathlib import Path

from apps.common.flags.address import DirectoryAddress
from apps.common.flags.command_flags import (
    AT_END,
    FinalFlags,
    OutputFlags,
    ProcessFlags,
    ShowFlags,
    TextFlags,
    check_directories,
    check_files,
    check_needs,
)
from apps.common.flags.run_flags import flag
from apps.swarm.config import TrainingConfig
from apps.swarm.families import cut_of
from pipelined.errors import UsageError, refuse_below
from pipelined.swarm.settings import PeerSettings, TrainerSettings

ANY_VOCABULARY = 256
"""The cut of a model does not depend on its vocabulary, which only the trainers know."""


@dataclass(frozen=True, kw_only=True)
class Serve(ProcessFlags, PeerSettings):
    """Join as a peer: find the stage that needs one most, download its state, serve."""

    address: DirectoryAddress

    def check(self) -> None:
        """Raises UsageError: it cannot run so."""
        self.address.check()
        self.check_peer(flag)
        check_needs(self, save_every="checkpoint")
        check_directories(checkpoint=self.checkpoint)


@dataclass(frozen=True, kw_only=True)
class Train(ProcessFlags, TrainerSettings):
    """Run a trainer: it holds no parameters, and sends microbatches through the peers."""

    address: DirectoryAddress
    settings: TrainingConfig = field(default_factory=TrainingConfig)
    text: TextFlags = field(default_factory=TextFlags)
    metrics: Path | None = None
    """Append one JSON object a step to this file."""
    final: FinalFlags = field(default_factory=FinalFlags)

    def check(self) -> None:
        """Raises UsageError: it cannot run so."""
        self.address.check()
        self.settings.check()
        cut_of(self.settings, ANY_VOCABULARY)
        refuse_below(1, "--slots", self.slots)
        self.final.check()
        check_files(metrics=self.metrics)


@dataclass(frozen=True)
class Local(ProcessFlags):
    """Start a whole swarm on this machine, with a live view: a coordinator, peers and trainers, a process each."""

    settings: TrainingConfig = field(default_factory=TrainingConfig)
    text: TextFlags = field(default_factory=TextFlags)
    peers: int = 6
    """Peers to start."""
    trainers: int = 1
    """Trainers to start."""
    slots: int = TrainerSettings.slots
    """Microbatches in flight at once, of each trainer."""
    links: str = ""
    """Emulate slow links: delay=50ms,rate=500mbit. With & in place of the comma, put it in quotes."""
    checkpoint: Path | None = None
    """Folder in which peers save their stages."""
    save_every: int = PeerSettings.save_every
    """Steps from one save to the next; 0 saves only at the end and on a stop request."""
    resume: bool = False
    """Begin at the latest step that --checkpoint has of all stages."""
    metrics: Path | None = None
    """Append one JSON object a step to this file."""
    final: FinalFlags = field(default_factory=FinalFlags)
    journal: Path | None = None
    """The coordinator's journal. Default: in a folder that is removed at the end."""

    def check(self) -> None:
        """Raises UsageError: it cannot run so."""
        self.settings.check()
        cut_of(self.settings, ANY_VOCABULARY)
        for name in ("peers", "trainers", "slots"):
            refuse_below(1, f"--{name}", getattr(self, name))
        refuse_below(0, "--save-every", self.save_every, AT_END)
        self.final.check()
        check_files(metrics=self.metrics, journal=self.journal)
        check_directories(checkpoint=self.checkpoint)
        check_needs(self, save_every="checkpoint", resume="checkpoint")
        if self.peers < self.settings.stages:
            fact = f"every stage needs a peer (peers: {self.peers}, stages: {self.settings.stages})"
            raise UsageError(f"{fact}; raise --peers or lower --stages")


@dataclass(frozen=True)
class Export:
    """Write the model of a swarm, running or saved, in Hugging Face's format, and sample from it."""

    checkpoint: tuple[Path, ...] = ()
    """Folders in which peers saved: the latest step that all stages saved is taken. Default: fetch from the peers."""
    coordinator: str = ""
    """Address of a running swarm's directory: tcp://HOST:PORT of a coordinator."""
    directory: str = ""
    """Instead of a coordinator: etcd://HOST:PORT,HOST:PORT,…"""
    listen: str | None = None
    """Address to which peers send the state. Default: the local address from which this machine reaches the
    directory."""
    output: OutputFlags = field(default_factory=OutputFlags)

    def check(self) -> None:
        """Raises UsageError: it cannot run so."""
        self.output.check()
        if self.checkpoint and (self.coordinator or self.directory):
            fact = "a model is exported from saved stages or from a running swarm, not from both"
            raise UsageError(f"{fact} (--checkpoint and --coordinator or --directory); leave one of them out")
        if not (self.checkpoint or self.coordinator or self.directory):
            raise UsageError("say what to export: --checkpoint DIR of what was saved, or --coordinator tcp://HOST:PORT")
        if not self.checkpoint:
            DirectoryAddress(self.coordinator, self.directory).check()


@dataclass(frozen=True)
class Status:
    """Show a swarm: stages, peers, throughput, queues, shares, bans, step and loss."""

    address: DirectoryAddress
    shown: ShowFlags = field(default_factory=ShowFlags)
    members: int = 100
    """The most peers, and the most trainers, that are queried and shown one by one; others are counted."""
    stage: int | None = None
    """Show only the peers of this stage. Default: all stages, from the first on."""

    def check(self) -> None:
        """Raises UsageError: it cannot run so."""
        self.address.check()
        self.shown.check()
        refuse_below(1, "--members", self.members)
        refuse_below(0, "--stage", 0 if self.stage is None else self.stage)
