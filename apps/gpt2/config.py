"""Every flag of the GPT-2 program: those of any training program, and its own. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apps.common.flags.command_flags import FinalFlags, ModelFlags, check_sample
from apps.common.flags.run_flags import MINIMUM, RunFlags, TextDataFlags, flag, parse_flags
from apps.common.lm.models.gpt2_presets import PRESETS
from apps.common.lm.sharded.layouts import divides
from apps.gpt2.planning.workload import WorkloadOptions
from pipelined.errors import UsageError

__all__ = ["GPT2Flags", "flag", "parse"]
COMMAND_NAME = "python -m apps.gpt2"
PUBLISHED, TOKENIZER, SYMBOLS = "gpt2", "gpt2", 50257
"""What the published models are called, or begin with; their tokenizer, and its symbols."""
LR, SEQUENCE = 6e-4, 1024
"""The learning rate and the tokens of a sequence with which nanoGPT trains and fine-tunes them."""
SIZES = {
    **dict.fromkeys(("layers", "d_model", "heads", "vocab", "seq", "clusters", "average_every"), 1),
    "sample": 0,
    "eval_windows": 0,
}
"""The smallest value of each number that only this program has."""


@dataclass(frozen=True)
class GPT2Flags(ModelFlags, FinalFlags, TextDataFlags, RunFlags):
    """Train a GPT-2 across ranks, in pipelines; `generate --from DIR` continues prompts with what was trained."""

    schedule: str | None = None
    """Order of a pipeline's work: the name of a schedule, a dotted module, a .py file, or a .csv table; or swarm or
    ravnest (docs/command-line.md says which flags these take). Default: chimera at even depths, else one_f_one_b."""
    layout: str | None = None
    """How the ranks of a worker split the model: auto or paper (searched), data, zero1, zero2, zero3, summa, megatron,
    ROWS.COLUMNS.CONTRACTION by operator, such as c_attn=1.2.1,c_fc=1.2.1, or a file of `pipelined shard --out`.
    Default: auto, which moves for the shortest time of all layouts that fit the memory."""
    all_reduce: str = "auto"
    """Algorithm of gradient sums: auto, ring, rabenseifner, multi_ring, recursive_doubling, hierarchical, native or
    shared. recursive_doubling:16384,ring: the first up to 16,384 bytes, the second beyond. measured: time all of them
    first."""
    lr: float = 4e-3
    """Highest learning rate. Default of a published GPT-2 (--preset gpt2..., --init): 6e-4."""
    preset: str = "tiny"
    """Model: tiny, gpt2, gpt2-medium, gpt2-large, gpt2-xl, chimera (the paper's), or of AutoDDL's paper autoddl-8, -20
    and -44, autoddl-small, -large and -deep; also by their names in a swarm, such as gpt2-chimera."""
    vocab: int | None = None
    """Vocabulary of the model, at least that of the tokenizer, instead of the preset's (tiny: the tokenizer's)."""
    seq: int | None = None
    """Tokens of a sequence. Default: 64, or 1024 of a published GPT-2; or the model's positions if they are fewer."""
    dropout: float | None = None
    """Dropout probability in training, instead of the preset's."""
    listen: str | None = None
    """With --schedule swarm or ravnest: tcp://HOST:PORT at which rank 0 accepts requests. Default: only this machine
    can join."""
    clusters: int | None = None
    """With --schedule ravnest: clusters, each with the whole model. Default: the most that are near enough to one
    another."""
    average_every: int | None = None
    """With --schedule ravnest: microbatches of a cluster from one round of averaging to the next, in whole steps.
    Default: 16, or a few more."""
    init: Path | None = None
    """Start from a Hugging Face GPT-2 directory, which determines the sizes."""
    trace: Path | None = None
    """Write a Chrome/Perfetto timeline of all ranks to this file."""
    replay: Path | None = None
    """Run the instructions of every step in the order of a timeline that --trace wrote."""
    sample: int = 200
    """Tokens to sample at the end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (name := self.preset.removeprefix("gpt2-")) in PRESETS:  # as a swarm calls it
            object.__setattr__(self, "preset", name)
        if self.new_data and self.resume is None:
            raise UsageError("--new-data goes with a run that is resumed; add --resume auto, or leave it out")
        if self.listen is not None and self.schedule not in ("swarm", "ravnest"):
            fact = f"only swarms and clusters are joined by others (--listen {self.listen}, --schedule "
            raise UsageError(f"{fact}{self.schedule or 'open'}); add --schedule swarm or ravnest, or leave it out")
        for name in ("clusters", "average_every"):
            if getattr(self, name) is not None and self.schedule != "ravnest":
                fact = f"only Ravnest has clusters ({flag(name)} {getattr(self, name)}, --schedule "
                raise UsageError(f"{fact}{self.schedule or 'open'}); add --schedule ravnest, or leave it out")
        check_sample(self.sample, self.prompt)

    @property
    def is_published(self) -> bool:
        """Whether the model is GPT-2 as published, perhaps of other sizes, or one that --init names."""
        return self.init is not None or self.preset.startswith(PUBLISHED)

    @property
    def workload_options(self) -> WorkloadOptions:
        """What decides the bytes of a number and of a microbatch."""
        return WorkloadOptions(
            itemsize=self.itemsize,
            exact=self.exact_sums,
            divided=self.divides,
            masters=self.master_itemsize,
            recompute_attention=self.recompute_attention,
            product=self.product_itemsize,
        )

    @property
    def divides(self) -> bool:
        return self.shard_optimizer or (self.layout is not None and divides(self.layout))

    def least(self) -> Mapping[str, float]:
        return MINIMUM | SIZES


def parse(arguments: list[str], default: GPT2Flags | None = None) -> GPT2Flags:
    """The flags of a command line.

    Args:
        default: the values of flags that are not given. Without it the class's, or a published model's own.
    Raises:
        SystemExit, UsageError: see `parse_flags`.
    """
    config = parse_flags(arguments, default or GPT2Flags(), COMMAND_NAME)
    defaults = published_defaults(config) if default is None else {}
    return parse_flags(arguments, GPT2Flags(**defaults), COMMAND_NAME) if defaults else config


def published_defaults(config: GPT2Flags) -> Mapping[str, Any]:
    """The flags of which a published model has another default; its sequence is as long as its positions allow.

    Tokens in files, a directory of --init and a smaller vocabulary say which tokenizer theirs is.
    """
    if not config.is_published:
        return {}
    from pipelined.api.data.tokens.index import is_tokenized

    names_tokenizer = config.init is not None or any(map(is_tokenized, config.data))
    fits = config.vocab is None or config.vocab >= SYMBOLS
    return {"lr": LR} | ({"tokenizer": TOKENIZER} if fits and not names_tokenizer else {})
