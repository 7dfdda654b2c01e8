"""The training of a swarm: a dataclass that makes part of the command line. No torch.

The first trainer writes what is trained to the directory. Every later process reads it there, so a peer needs no flag
but the directory's address.
"""

import json
from dataclasses import dataclass
from typing import Literal

from apps.common.commands.task import UNREADABLE, TrainingTask, read_settings, unknown_task
from apps.common.flags.command_flags import ModelFlags, check_microbatches, check_needs
from apps.common.flags.run_flags import ZERO, EvaluationFlags, flag
from pipelined.errors import UsageError, refuse_below, refuse_non_positive
from pipelined.swarm.settings import SharedSettings
from pipelined.swarm.status.swarm_status import Goal


@dataclass(frozen=True)
class TrainingConfig(EvaluationFlags, ModelFlags, SharedSettings):
    """What a swarm trains; the same for all of its processes."""

    preset: str = "tiny"
    """Model: tiny, base, xxlarge, gpt3, ours (SWARM's paper, 4.3) or ours-unshared; or gpt2-tiny, gpt2, gpt2-medium,
    gpt2-large, gpt2-xl, gpt2-chimera or one of gpt2-autoddl-* (docs/swarm-model.md has their sizes)."""
    positions: int | None = None
    """The longest sequence in tokens, instead of the preset's."""
    dropout: float | None = None
    """Dropout probability in training, instead of the preset's."""
    tied: bool = False
    """One matrix for GPT-2's embedding and head, as it was published; needs one stage."""
    shared: int | None = None
    """Consecutive layers with one set of parameters, instead of the preset's."""
    squeeze: Literal["none", "bottleneck", "maxout"] = "none"
    """The layer that makes the stream between stages narrow."""
    factor: int = 2
    """How many times narrower: 2 or 4."""
    stages: int = 3
    """Stages the model is cut into."""
    microbatch: int = 4
    """Sequences in a microbatch (B)."""
    batch: int = 32
    """Sequences a step, whatever the number of peers."""
    seq: int = 64
    """Tokens a sequence."""
    steps: int = 200
    """Steps to train."""
    eval_every: int = 0
    """Steps between evaluations; 0 evaluates only at the end."""
    optimizer: Literal["adamw", "lamb"] = "adamw"
    """How parameters are updated."""
    lr: float = 4e-3
    """Highest learning rate."""
    warmup: int = 30
    """Steps in which the learning rate rises."""
    weight_decay: float = 0.1
    """Decay of matrices."""
    clip: float = 1.0
    """Largest norm of the mean gradient; 0 does not clip."""
    seed: int = 0
    """Seed of initial values, dropout and the order of the data."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """float32, float64, or bfloat16 (autocast in the forward, float32 parameters)."""
    delayed_updates: bool = False
    """Apply each gradient one step late, and sum it while the next step is computed."""

    @property
    def tokens(self) -> int:
        """Tokens of a microbatch."""
        return self.microbatch * self.seq

    def check_stage(self, stage: int | None) -> None:
        """Raises UsageError: there is no such stage; None means any."""
        if stage is not None and not 0 <= stage < self.stages:
            fact = f"there is no such stage (--stage {stage}, stages: {self.stages})"
            raise UsageError(f"{fact}; take one from 0 to {self.stages - 1}, or leave --stage out")

    def check(self) -> None:
        """Raises UsageError: no model can be trained so. The owner calls this, so that the error names its command."""
        for name in ("stages", "microbatch", "batch", "seq", "steps"):
            refuse_below(1, flag(name), getattr(self, name))
        for name in ("eval_every", "warmup", "weight_decay", "clip"):
            refuse_below(0, flag(name), getattr(self, name))
        refuse_below(0, "--eval-windows", self.eval_windows or 0, ZERO["eval_windows"])
        self.check_shared(flag, delayed=self.delayed_updates)
        check_microbatches(self.batch, self.microbatch)
        check_needs(self, factor="squeeze")
        if self.tied and self.stages > 1:
            fact = f"--tied needs one stage (--stages {self.stages})"
            raise UsageError(f"{fact}; give --stages 1, or leave --tied out")
        refuse_non_positive("--lr", self.lr)


@dataclass(frozen=True)
class SwarmTask(TrainingTask):
    """What is trained as the directory keeps it, with what depends on the text.

    Args:
        vocabulary: symbols of the model: those of the tokenizer, or more.
        text: digest of tokenizer and text.
        held_out: microbatches of validation data; 0: nothing is evaluated.
    """

    settings: TrainingConfig
    held_out: int = 0

    def pack(self) -> bytes:
        return json.dumps(self.to_dict(), sort_keys=True).encode()

    @classmethod
    def unpack(cls, data: bytes) -> "SwarmTask":
        """Read the directory's record.

        Raises:
            UsageError: it is not a training of this release.
        """
        try:
            record = json.loads(data)
            return cls(
                read_settings(TrainingConfig, record["subject"]),
                int(record["vocabulary"]),
                str(record["text"]),
                int(record["held_out"]),
            )
        except UNREADABLE as error:
            raise unknown_task(error, data, "a swarm") from error


def read_goal(data: bytes) -> Goal:
    """What the status of a swarm shows of the directory's record, also of a swarm that `pipelined.swarm.train` began.

    The tokens of a microbatch of a user's own model are its rows.

    Raises:
        UsageError: as `SwarmTask.unpack`.
    """
    try:
        record = json.loads(data)
        if "subject" not in record:
            return Goal(int(record["steps"]), int(record["rows"]), 0)
        task = SwarmTask.unpack(data)
        return Goal(task.settings.steps, task.settings.tokens, task.held_out)
    except UsageError:
        raise
    except UNREADABLE as error:
        raise unknown_task(error, data, "a swarm") from error
