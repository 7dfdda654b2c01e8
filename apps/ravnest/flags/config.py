"""The training of Ravnest: a dataclass that makes part of the command line. No torch.

The process that forms clusters writes it to the directory; nodes read it there.
"""

import json
from dataclasses import dataclass, field
from typing import Literal

from apps.common.commands.task import UNREADABLE, TrainingTask, read_settings, unknown_task
from apps.common.flags.command_flags import ModelFlags, check_microbatches
from apps.common.flags.run_flags import flag
from apps.ravnest.families.registry import ModelSizes, find_family
from pipelined.errors import UsageError, refuse_below, refuse_non_positive
from pipelined.membership.directory.limits import refuse_lease_length
from pipelined.training.exchange.compression import check_codec

MEANINGLESS = {
    "clip": "a step's norm is known when all stages have summed it, as at a flush, and clusters train without one; "
    "lower --lr or raise --warmup instead",
    "stages": "the plan gives each node of a cluster a stage; say how many --nodes and --clusters there are",
    "eval_every": "no node has the whole model before the end; leave it out",
    "compress_sums": "rounds send parameters as they are; leave it out",
    "exact_sums": "gradients are not summed between nodes; leave it out, and see --orders for the same bits again",
    "delayed_updates": "a stage is updated right after each backward; leave it out",
    "rebalance": "nodes keep their layers until other clusters are formed; leave it out",
    "peers": "a node is a peer and holds layers; give --nodes",
    "trainers": "the nodes of a cluster train without trainers; leave it out",
    "slots": "microbatches alive take their place; give --ahead, or leave it out",
}
"""Flags of `apps.swarm` that mean nothing to clusters: why, and what to do."""
MAX_LAYERS = 1 << 16
"""The most layers of a model: every process that reads the directory's record counts them."""


@dataclass(frozen=True)
class PlannedFlags(ModelFlags):
    """What a plan depends on."""

    positions: int | None = None
    """The longest sequence in tokens, instead of the preset's."""
    seq: int = 64
    """Tokens a sequence."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """float32, float64, or bfloat16 (autocast in the forward, float32 parameters)."""
    preset: str = "tiny"
    """Model: tiny, gpt2, gpt2-medium, gpt2-large, gpt2-xl, chimera or one of autoddl-*,
    always with a head of its own; or digits."""
    weights: Literal["kept", "newest"] = "kept"
    """kept: a version of the weights for each microbatch alive; newest: one, and the backward computes anew with it."""
    compress: str = "none"
    """Codec for activations and gradients between nodes: none, blockwise8, bf16, fp16 or zstd."""


@dataclass(frozen=True)
class RavnestConfig(PlannedFlags):
    """What Ravnest trains; the same for all of its processes."""

    dropout: float | None = None
    """Dropout probability in training, instead of the preset's."""
    microbatch: int = 4
    """Sequences in a microbatch (B); each stage is updated after each microbatch."""
    batch: int = 16
    """Sequences a step, whichever cluster trains on them."""
    steps: int = 200
    """Steps to train, of all clusters together."""
    average_every: int = 16
    """Microbatches of a cluster from one round of averaging to the next; whole steps."""
    average: Literal["overlapped", "blocking"] = "overlapped"
    """overlapped: clusters train on during a round, and add its difference; blocking: they drain, and wait for it."""
    weigh: Literal["equal", "microbatches"] = "equal"
    """equal: each cluster counts the same in a round; microbatches: by how many it trained since the last one."""
    optimizer: Literal["adamw", "lamb"] = "adamw"
    """The rule of updates: adamw, or lamb."""
    lr: float = 2e-3
    """Highest learning rate, of an update by one microbatch."""
    warmup: int = 10
    """Steps in which the learning rate rises."""
    weight_decay: float = 0.1
    """Decay of matrices."""
    seed: int = 0
    """Seed of initial values, dropout and the order of the data."""
    lease: float = 10.0
    """Seconds without a heartbeat after which a node is removed; raise it for large models."""

    @property
    def microbatches(self) -> int:
        """Microbatches of a step."""
        return self.batch // self.microbatch

    def check(self) -> None:
        """Raises UsageError: no model can be trained so. The owner calls this, so that the error names its command."""
        for name in ("microbatch", "batch", "seq", "steps", "average_every"):
            refuse_below(1, flag(name), getattr(self, name))
        for name in ("warmup", "weight_decay"):
            refuse_below(0, flag(name), getattr(self, name))
        if (self.layers or 0) > MAX_LAYERS:
            raise UsageError(f"--layers must be at most {MAX_LAYERS} (it is {self.layers})")
        check_microbatches(self.batch, self.microbatch)
        if self.average_every % self.microbatches:
            fact = f"rounds are not whole steps apart (--average-every {self.average_every}, microbatches of a step: "
            raise UsageError(f"{fact}{self.microbatches}); take a multiple of {self.microbatches}")
        check_codec(self.compress, "--compress")
        refuse_non_positive("--lr", self.lr)
        refuse_lease_length("--lease", self.lease)

    def model(self, vocabulary: int) -> ModelSizes:
        """The sizes of the model. Raises UsageError: no such preset, or as `GPT2Family.sizes`."""
        names = ("layers", "d_model", "heads", "positions", "dropout")
        sizes = {name: value for name in names if (value := getattr(self, name)) is not None}
        return find_family(self.preset).sizes(self.preset, sizes, self.seq, vocabulary)


@dataclass(frozen=True)
class RavnestTask(TrainingTask):
    """What is trained as the directory keeps it, with what depends on the data.

    Args:
        vocabulary: symbols of the tokenizer; or classes of images.
        text: digest of tokenizer and text, or of the images.
        code: digest of the code that trains; "": not known, as in records of earlier releases.
    """

    settings: RavnestConfig
    code: str = field(default="", compare=False)

    def pack(self) -> bytes:
        return json.dumps({"ravnest": self.to_dict()}, sort_keys=True).encode()

    @classmethod
    def unpack(cls, data: bytes) -> "RavnestTask":
        """Read the directory's record.

        Raises:
            UsageError: it is not a training of this release.
        """
        try:
            record = json.loads(data)["ravnest"]
            settings = read_settings(RavnestConfig, record["subject"])
            return cls(settings, int(record["vocabulary"]), str(record["text"]), str(record.get("code", "")))
        except UNREADABLE as error:
            raise unknown_task(error, data, "Ravnest") from error
