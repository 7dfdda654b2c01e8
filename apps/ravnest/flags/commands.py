"""The flags of each command of Ravnest: dataclasses that make the command line. No torch."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from apps.common.flags.address import DirectoryAddress
from apps.common.flags.command_flags import (
    AT_END,
    FileFlags,
    OutputFlags,
    ProcessFlags,
    ShowFlags,
    TextFlags,
    check_directories,
    check_files,
    check_microbatches,
    check_needs,
)
from apps.ravnest.families.registry import ModelSizes, find_family
from apps.ravnest.flags.config import PlannedFlags, RavnestConfig
from apps.ravnest.flags.groups import AverageFlags, FormingFlags, NewcomerFlags, check_clusters
from pipelined.errors import UsageError, refuse_below
from pipelined.ravnest.planning.pool import BYTES, RATES, SECONDS, SPEEDS, quantity
from pipelined.ravnest.records.nodes import MAX_DELAY_S
from pipelined.training.exchange.compression import check_codec

MIN_VOCABULARY = 256
"""Symbols of a model that is only checked; the text decides later."""


@dataclass(frozen=True, kw_only=True)
class Plan(PlannedFlags, FileFlags):
    """Form clusters of a pool, and cut the model in each: no network, no training."""

    pool: Path
    """CSV file with a PC a line: name,ram,bandwidth and perhaps flops,reliability (8G, 200mbit, 400G, 0.99)."""
    forming: FormingFlags = field(default_factory=FormingFlags)
    method: Literal["exhaustive", "genetic"] | None = None
    """How clusters are searched. Default: exhaustive for at most 11 nodes; it takes at most 12."""
    bytes: str | None = None
    """Instead of a model: the bytes that a cluster needs, as 13G; nodes are grouped, and nothing is cut."""
    vocab: int | None = None
    """Symbols, instead of the preset's."""
    microbatch: int = 4
    """Sequences in a microbatch (B)."""
    average: Literal["overlapped", "blocking"] = "overlapped"
    """overlapped: the copies of a round are held beside training; blocking: while a cluster is drained."""
    saves: bool = False
    """Nodes save (--checkpoint): they need room for a copy of their moments."""
    batch: int = 16
    """Sequences a step: where two nodes hold a place, the inputs of two steps may wait at one of them."""
    json: bool = False
    """Print one JSON object instead."""
    png: Path | None = None
    """Draw clusters, cuts and rings to this file; it needs the extra draw."""

    def check(self) -> None:
        """Raises UsageError: it cannot run so."""
        self.forming.check()
        for name in ("microbatch", "seq", "batch"):
            refuse_below(1, f"--{name}", getattr(self, name))
        check_microbatches(self.batch, self.microbatch)
        check_codec(self.compress, "--compress")
        check_files(png=self.png)
        if self.png is not None and self.bytes is not None:
            raise UsageError("--png draws cuts, and --bytes has none; give --preset instead of --bytes")
        if self.bytes is None:
            self.find_model()  # it refuses an unknown preset, and sizes that do not fit
        elif self.need < 1:
            raise UsageError(f"--bytes must be at least 1 (it is {self.bytes})")

    @property
    def need(self) -> int:
        """The bytes of --bytes; 0 where a model is given instead."""
        return 0 if self.bytes is None else int(quantity("--bytes", self.bytes, BYTES))

    def find_model(self) -> ModelSizes:
        """The model's sizes; its embedding and head are two matrices, as stages on two nodes need them.

        Raises:
            UsageError: no such preset, or as `GPT2Family.sizes`.
        """
        names = ("layers", "d_model", "heads", "vocab", "positions")
        sizes = {name: value for name in names if (value := getattr(self, name)) is not None}
        return find_family(self.preset).sizes(self.preset, sizes, self.seq)


@dataclass(frozen=True, kw_only=True)
class Serve(ProcessFlags):
    """Join as a node: wait for a cluster, and train its stage of it."""

    address: DirectoryAddress
    ram: str | None = None
    """Bytes that it may use for the model, as 4G. Default: the memory that it could use now."""
    bandwidth: str | None = None
    """Rate of this node's line, such as 200mbit. Clusters are planned with it. Default: measured, with its delay."""
    delay: str | None = None
    """One-way latency of the line, such as 30ms. Default: measured with the line; 0 where --bandwidth is given."""
    flops: str | None = None
    """Its speed, as 400G; 0: not known, and nodes are compared without it. Default: measured on the model's layers."""
    reliability: float = 1.0
    """How reliable this node is, from 0 to 1. The least reliable places get backups first."""
    device: str = "cpu"
    """Where to compute: cpu, cuda:0, …"""
    text: TextFlags = field(default_factory=TextFlags)
    checkpoint: Path | None = None
    """Folder for the stage: averages of rounds, and the final parameters; `export` reads it."""
    save_every: int = 4
    """Rounds from one save to the next; 0 saves only at the end."""
    orders: Path | None = None
    """Write to this folder what this node does, in order, so that `replay` can do the same again."""

    def check(self) -> None:
        """Raises UsageError: it cannot run so."""
        self.address.check()
        check_directories(checkpoint=self.checkpoint, orders=self.orders)
        refuse_below(0, "--save-every", self.save_every, AT_END)
        check_needs(self, save_every="checkpoint")
        for name, amount in (("ram", self.ram_bytes), ("bandwidth", self.rate)):
            if amount is not None and amount < 1:
                fact = f"--{name} must be at least 1 byte (it is {getattr(self, name)})"
                raise UsageError(f"{fact}; give more, or leave it out to be measured")
        if not 0 <= self.reliability <= 1:
            raise UsageError(f"--reliability must be from 0 to 1 (it is {self.reliability!r})")
        if (self.delay_s or 0.0) > MAX_DELAY_S:
            raise UsageError(f"--delay must be at most {MAX_DELAY_S:g}s (it is {self.delay})")
        self.find_speed()  # it refuses what is no speed

    @property
    def ram_bytes(self) -> int | None:
        """Bytes; None: what is free."""
        return None if self.ram is None else int(quantity("--ram", self.ram, BYTES))

    @property
    def rate(self) -> float | None:
        """Bytes a second; None: to be measured."""
        return None if self.bandwidth is None else quantity("--bandwidth", self.bandwidth, RATES)

    @property
    def delay_s(self) -> float | None:
        """Seconds; None: as measured."""
        return None if self.delay is None else quantity("--delay", self.delay, SECONDS)

    def find_speed(self) -> float | None:
        """Floating-point operations a second; 0: not known; None: to be measured. Raises UsageError: no speed."""
        return None if self.flops is None else quantity("--flops", self.flops, SPEEDS)


@dataclass(frozen=True, kw_only=True)
class Train(ProcessFlags):
    """Say what is trained, form clusters of the nodes that came, and show their steps."""

    address: DirectoryAddress
    settings: RavnestConfig = field(default_factory=RavnestConfig)
    nodes: int = 3
    """Nodes to wait for."""
    forming: FormingFlags = field(default_factory=FormingFlags)
    later: NewcomerFlags = field(default_factory=NewcomerFlags)
    text: TextFlags = field(default_factory=TextFlags)
    checkpoint: Path | None = None
    """With --resume: a folder in which nodes, or one of them, saved; it names the run."""
    resume: bool = False
    """Go on from the latest step of which the nodes hold all stages; start each with the --checkpoint that it had."""
    final: AverageFlags = field(default_factory=AverageFlags)
    metrics: Path | None = None
    """Append one JSON object for each step to this file."""

    def check(self) -> None:
        """Raises UsageError: it cannot run so."""
        self.address.check()
        check_forming(self)
        check_needs(self, "add it to go on from there; to save, give each `serve` a --checkpoint", checkpoint="resume")
        check_files(metrics=self.metrics)


@dataclass(frozen=True)
class Local(ProcessFlags):
    """Start everything on this machine: a coordinator, nodes, and `train`, a process each."""

    settings: RavnestConfig = field(default_factory=RavnestConfig)
    nodes: int = 3
    """Nodes to start."""
    pool: Path | None = None
    """Instead of --nodes: a pool as `plan` takes it; the plan keeps to its RAM, and its lines are emulated."""
    forming: FormingFlags = field(default_factory=FormingFlags)
    later: NewcomerFlags = field(default_factory=NewcomerFlags)
    links: str = ""
    """Emulate slow links: delay=50ms,rate=500mbit. With & in place of the comma, put it in quotes."""
    text: TextFlags = field(default_factory=TextFlags)
    metrics: Path | None = None
    """Append one JSON object for each step to this file."""
    journal: Path | None = None
    """The coordinator's journal. Default: in a folder that is removed at the end."""
    checkpoint: Path | None = None
    """Folder for the stages: averages of rounds, and the final parameters; `export` reads it."""
    save_every: int = 4
    """Rounds from one save to the next; 0 saves only at the end."""
    resume: bool = False
    """Go on from the latest step of which --checkpoint has all stages."""
    final: AverageFlags = field(default_factory=AverageFlags)
    orders: Path | None = None
    """Write to this folder what each node does, in order, so that `replay` can do the same again."""

    def check(self) -> None:
        """Raises UsageError: it cannot run so."""
        check_forming(self)
        check_files(metrics=self.metrics, journal=self.journal)
        check_directories(checkpoint=self.checkpoint, orders=self.orders)
        refuse_below(0, "--save-every", self.save_every, AT_END)
        check_needs(self, save_every="checkpoint")


@dataclass(frozen=True)
class Status:
    """Show the clusters: nodes, layers, steps, losses and delays."""

    address: DirectoryAddress
    shown: ShowFlags = field(default_factory=ShowFlags)

    def check(self) -> None:
        """Raises UsageError: it cannot run so."""
        self.address.check()
        self.shown.check()


@dataclass(frozen=True)
class Export:
    """Write the model that the nodes saved in Hugging Face's format, and sample from it."""

    checkpoint: tuple[Path, ...]
    """Folders in which nodes saved: the latest step that all stages saved is taken."""
    output: OutputFlags = field(default_factory=OutputFlags)

    def check(self) -> None:
        """Raises UsageError: it cannot run so."""
        self.output.check()


@dataclass(frozen=True)
class Replay:
    """Train again in one process, each node in its recorded order: the same bits on the same kind of machine."""

    orders: Path
    """The folder that `--orders` wrote, with the file of every node."""
    device: str = "cpu"
    """Where to compute: cpu, cuda:0, …"""
    text: TextFlags = field(default_factory=TextFlags)

    def check(self) -> None:
        """Nothing to refuse: the orders are checked when they are read."""


def check_forming(flags: Train | Local) -> None:
    """Raises UsageError: nothing can be trained, or no clusters formed, so."""
    check_needs(flags, resume="checkpoint")
    flags.settings.check()
    flags.settings.model(MIN_VOCABULARY)
    find_family(flags.settings.preset).check(flags.text.data)
    flags.forming.check()
    flags.final.check_preset(flags.settings.preset)
    refuse_below(1, "--nodes", flags.nodes)
    if not (isinstance(flags, Local) and flags.pool):
        check_clusters(flags.forming, flags.nodes)
