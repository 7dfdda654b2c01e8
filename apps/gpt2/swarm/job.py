"""`--schedule swarm`: the job of a swarm from the flags of GPT-2's program. No torch.

A flag that means nothing to a swarm is refused. Every other flag means what it does elsewhere, so the same flags with
another schedule train the same model on the same sequences.
"""

from dataclasses import dataclass, replace

from apps.common.flags.run_flags import config_json, flag
from apps.common.lm.data.text import Text
from apps.common.lm.models.gpt2_presets import ModelConfig, layer_costs, parameters
from apps.common.run.choose import CLIP
from apps.gpt2.config import GPT2Flags
from apps.gpt2.job import batch_of, describe_published, model_config, sequence_of
from apps.gpt2.members import MODEL_FIELDS, check_paths, check_saved_text, refuse_flags, refuse_meaningless
from apps.gpt2.text import text_of
from apps.swarm.config import SwarmTask, TrainingConfig
from apps.swarm.data import MicrobatchFeed, task_and_feed
from apps.swarm.families import gpt2_name
from pipelined.errors import UsageError
from pipelined.programs.partition import partition
from pipelined.training.exchange.compression import check_codec

SCHEDULE = "swarm"
STAGES, PEERS_A_STAGE = 3, 2
"""By default: at most this many stages, and this many peers of each."""
FLAG_FIELDS = "steps eval_every eval_windows lr warmup weight_decay seed dtype compress exact_sums".split()
"""Fields of a `TrainingConfig` with the name and value of a flag."""
NOT_IN_SWARM = {
    "plan": "a swarm has no static plan: the leader assigns peers to stages",
    "tensor": "each peer holds its stage whole",
    "layout": "each peer holds its stage whole",
    **dict.fromkeys(
        ("lr_schedule", "min_lr", "beta1", "beta2", "eps"), "a swarm's optimizer has a cosine rate and its own"
    ),
    **dict.fromkeys(
        ("recompute", "recompute_attention"), "a peer always runs the forward of its stage again before the backward"
    ),
    "compile": "microbatches of any number of rows come to a peer",
    "shard_optimizer": "the peers of a stage each hold its whole state, so that any of them may leave",
    **dict.fromkeys(("offload_optimizer", "delayed_update"), "a peer updates its stage where it computes"),
    "all_reduce": "the peers of a stage sum by slices that each of them owns",
    "trace": "the peers of a microbatch are chosen at run time, so there is no schedule to record",
    "async_save": "a peer always saves its stage while it trains",
    "replay": "the peers of a microbatch are chosen at run time, so there is no schedule to record",
}
"""Flags that mean nothing to a swarm, and why."""


@dataclass(frozen=True)
class SwarmJob:
    """The job that will be run.

    Args:
        config: the flags.
        model: its sizes; untied where there is more than one stage.
        settings: what the directory keeps of the training, without what the text says.
        ranks: number of ranks, each of them a peer.
        is_untied: whether the model is tied as published, and untied here.
    """

    config: GPT2Flags
    model: ModelConfig
    settings: TrainingConfig
    ranks: int
    is_untied: bool

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.settings.batch * self.settings.seq

    def stage_of(self, rank: int) -> int:
        """The stage with which a rank begins."""
        return rank % self.settings.stages

    def trains(self, rank: int) -> bool:
        """Whether a rank runs a trainer beside its peer: one for the peers of each stage."""
        return self.stage_of(rank) == 0

    def to_dict(self) -> dict[str, object]:
        """The resolved whole as JSON can hold it."""
        sizes = {name: getattr(self.model, name) for name in ("layers", "d_model", "heads", "vocab", "dropout", "tied")}
        settings = self.settings
        left_open = ["microbatches"]  # they follow from the other two, and as a flag count for one of W peers
        if self.config.clip is None:
            left_open.append("clip")
        choices = {
            "depth": settings.stages,
            "microbatch": settings.microbatch,
            "batch": settings.batch,
            "microbatches": settings.batch // settings.microbatch,
            "seq": settings.seq,
            "clip": settings.clip,
            "ranks": self.ranks,
            "left_open": left_open,
        }
        return {**self.config.to_dict(), **sizes, **choices}

    def json(self) -> str:
        return config_json(self.config, self.to_dict())

    def describe(self) -> str:
        """The job in a few lines."""
        settings, model = self.settings, self.model
        trainers = sum(map(self.trains, range(self.ranks)))
        lines = [
            f"model: GPT-2 {self.config.preset}, {parameters(model):,} parameters, {model.layers} blocks of width "
            f"{model.d_model}, vocabulary {model.vocab}",
            f"swarm: {settings.stages} stages, ranks: {self.ranks}, each a peer; trainers: {trainers}",
            f"batch: {settings.batch} sequences of {settings.seq} tokens = {settings.microbatch} a microbatch x "
            f"{settings.batch // settings.microbatch} microbatches",
        ]
        if self.config.is_published:
            lines.append(describe_published(self.config, settings.seq))
        if self.is_untied:
            lines.append(
                f"untied: stages share nothing, so the head has a matrix of its own, which begins as the embedding's "
                f"({model.vocab * model.d_model:,} parameters more); --depth 1 keeps them one"
            )
        return "\n".join(lines)

    def check(self) -> None:
        """Refuse a job that would fail later, or overwrite files of another.

        Raises:
            UsageError: the first mistake found, with its remedy.
        """
        check_codec(self.config.compress, "--compress")
        check_paths(self.config, self.model)

    def read_text(self) -> Text:
        """Read the text.

        Raises:
            UsageError: it cannot be read, is too short, has more symbols than the model, or is not the saves' text.
        """
        text = text_of(self.config, self.model)
        check_saved_text(self.config, self.model, text)
        self.task_and_feed(text)
        return text

    def task_and_feed(self, text: Text) -> tuple[SwarmTask, MicrobatchFeed]:
        """What is trained on this text, and its microbatches. Raises UsageError: it is too short."""
        return task_and_feed(self.settings, text, self.model.vocab)


def resolve_swarm(config: GPT2Flags, world_size: int | None) -> SwarmJob:
    """Choose what the flags left open.

    Args:
        world_size: ranks that were started; None: as many as the swarm needs.
    Raises:
        UsageError: the flags request something impossible, or something that means nothing to a swarm.
    """
    for name, value in config.knobs.items():
        raise UsageError(f"{flag(name)} {value} means nothing to a swarm: a peer holds one stage; leave it out")
    refuse_meaningless(config, NOT_IN_SWARM, "a swarm")
    refuse_flags(config, "a swarm")
    base = model_config(config)
    sequence = sequence_of(config, base)
    stages, ranks = _arrangement(config, world_size)
    partition(layer_costs(base, sequence), stages)
    batch, rows = _batch(config, ranks, stages)
    tied = base.tied and stages == 1
    model = replace(base, tied=tied)
    settings = TrainingConfig(
        preset=gpt2_name(config.preset) if config.init is None else "gpt2",
        tied=tied,
        stages=stages,
        microbatch=rows,
        batch=batch,
        seq=sequence,
        clip=CLIP if config.clip is None else config.clip,
        **{name: getattr(model, name) for name in MODEL_FIELDS},
        **{name: getattr(config, name) for name in FLAG_FIELDS},
    )
    settings.check()
    return SwarmJob(config, model, settings, ranks, base.tied and not tied)


def _arrangement(config: GPT2Flags, world_size: int | None) -> tuple[int, int]:
    """The number of stages, and of ranks."""
    width = config.width or PEERS_A_STAGE
    if world_size is None:
        stages = config.depth or STAGES
        return stages, stages * width
    stages = config.depth or min(STAGES, max(1, world_size // width))
    if world_size < stages:
        fact = f"every stage needs a peer (ranks: {world_size}, stages: {stages})"
        raise UsageError(f"{fact}; lower --depth or start more ranks")
    if config.width is not None and world_size != stages * config.width:
        fact = f"--width {config.width} does not fit the ranks (ranks: {world_size}, stages: {stages})"
        raise UsageError(f"{fact}; leave --width out, or start {stages * config.width} ranks")
    return stages, world_size


def _batch(config: GPT2Flags, ranks: int, stages: int) -> tuple[int, int]:
    """Sequences a step, and in a microbatch; --microbatches counts for each of the W peers of a stage."""
    if config.microbatches is not None and ranks % stages:
        fact = f"--microbatches needs the same number of peers at every stage (ranks: {ranks}, stages: {stages})"
        raise UsageError(f"{fact}; give --batch and --microbatch")
    return batch_of(config, ranks // stages)
