"""`--schedule ravnest`: the job of Ravnest's clusters from the flags of GPT-2's program. No torch.

A flag that means nothing to clusters is refused. Every other flag means what it does elsewhere.
"""

from dataclasses import dataclass, replace

from apps.common.flags.run_flags import config_json, flag
from apps.common.lm.data.batches import Batches
from apps.common.lm.data.text import Text
from apps.common.lm.models.gpt2_presets import ModelConfig, parameters
from apps.gpt2.config import GPT2Flags
from apps.gpt2.job import batch_of, model_config, sequence_of
from apps.gpt2.members import MODEL_FIELDS, check_paths, check_saved_text, refuse_flags, refuse_meaningless
from apps.gpt2.text import text_of
from apps.ravnest.flags.config import RavnestConfig
from apps.ravnest.flags.groups import FormingFlags, check_clusters
from pipelined.errors import UsageError

SCHEDULE = "ravnest"
NODES_A_CLUSTER, MIN_NODES = 2, 3
"""Ranks without a launcher: two a cluster, and at least three."""
AVERAGE_EVERY = 16
"""Microbatches of a cluster from one round to the next by default, or the next larger number of whole steps."""
LEASE_S = 60.0
"""The launcher ends the job when a rank dies; so a rank that is only slow keeps its lease."""
FLAG_FIELDS = ("preset", "steps", "lr", "warmup", "weight_decay", "seed", "dtype", "compress")
"""Fields of a `RavnestConfig` with the name and value of a flag."""
NOT_IN_RAVNEST = {
    "plan": "clusters are formed, and the model cut, by what each rank may hold",
    **dict.fromkeys(("depth", "width"), "the plan decides it, from --clusters"),
    **dict.fromkeys(("tensor", "layout"), "each node holds its layers whole"),
    **dict.fromkeys(("lr_schedule", "min_lr", "beta1", "beta2", "eps"), "its optimizer has a cosine rate and its own"),
    "clip": "no node knows the global norm when it is updated",
    **dict.fromkeys(("recompute", "recompute_attention"), "a node keeps the activations of the microbatches alive"),
    "compile": "a node that takes over layers would compile them while its cluster waits",
    "shard_optimizer": "no two nodes of a cluster hold the same layers",
    **dict.fromkeys(("offload_optimizer", "delayed_update"), "a node updates its layers where it computes"),
    "all_reduce": "clusters are averaged by rings",
    "exact_sums": "gradients are not summed between nodes",
    "trace": "the clusters run without a common step",
    "replay": "`python -m apps.ravnest replay` does it",
    "init": "every node draws its own layers",
    "eval_every": "no node has the whole model before the end",
    "digest": "the digest of the average is always printed",
    "save_every": "the average of every round is saved",
    "async_save": "a node always saves while it trains",
}
"""Flags that mean nothing to clusters, and why."""


@dataclass(frozen=True)
class RavnestJob:
    """The job that will be run.

    Args:
        config: the flags.
        model: its sizes; untied, as stages share nothing.
        settings: what the directory keeps of the training, without what the text says.
        ranks: number of ranks, each of them a node.
    """

    config: GPT2Flags
    model: ModelConfig
    settings: RavnestConfig
    forming: FormingFlags
    ranks: int

    def to_dict(self) -> dict[str, object]:
        """The resolved whole as JSON can hold it."""
        names = ("layers", "d_model", "heads", "vocab", "dropout")
        settings = self.settings
        numbers = {"microbatch": settings.microbatch, "batch": settings.batch, "seq": settings.seq}
        notes = {"ranks": self.ranks, "tied": False, "average_every": settings.average_every}
        return {**self.config.to_dict(), **{name: getattr(self.model, name) for name in names}, **numbers, **notes}

    def json(self) -> str:
        return config_json(self.config, self.to_dict())

    def describe(self) -> str:
        """The job in a few lines."""
        settings, model = self.settings, self.model
        clusters = self.config.clusters or "as many as are near enough to one another"
        return "\n".join(
            [
                f"model: GPT-2 {self.config.preset}, {parameters(model):,} parameters, {model.layers} blocks of width "
                f"{model.d_model}, vocabulary {model.vocab}; the head has a matrix of its own",
                f"ravnest: ranks: {self.ranks}, each a node; clusters: {clusters}, averaged every "
                f"{settings.average_every} microbatches",
                f"batch: {settings.batch} sequences of {settings.seq} tokens = {settings.microbatch} a microbatch x "
                f"{settings.microbatches} microbatches",
            ]
        )

    def check(self) -> None:
        """Refuse a job that would fail later, or overwrite files of another.

        Raises:
            UsageError: the first mistake found, with its remedy.
        """
        check_paths(self.config, self.model)

    def read_text(self) -> Text:
        """Read the text.

        Raises:
            UsageError: it cannot be read, is too short or not the resumed run's, or has more symbols than the model.
        """
        text = text_of(self.config, self.model)
        settings = self.settings
        text.require_running("Ravnest")
        check_saved_text(self.config, self.model, text)
        Batches(text.train, settings.seq, settings.microbatch, settings.microbatches, settings.seed)
        return text


def resolve_ravnest(config: GPT2Flags, world_size: int | None) -> RavnestJob:
    """Choose what the flags left open.

    Args:
        world_size: ranks that were started; None: NODES_A_CLUSTER for each cluster.
    Raises:
        UsageError: the flags request something impossible, or something that means nothing to clusters.
    """
    forming = FormingFlags(clusters=config.clusters, ahead=_ahead(config))
    refuse_meaningless(config, NOT_IN_RAVNEST, "Ravnest's clusters")
    refuse_flags(config, "a job of clusters")
    model = replace(model_config(config), tied=False)
    batch, rows = batch_of(config, 1)
    settings = RavnestConfig(
        microbatch=rows,
        batch=batch,
        seq=sequence_of(config, model),
        average_every=config.average_every or _next_multiple(AVERAGE_EVERY, max(1, batch // rows)),
        lease=LEASE_S,
        **{name: getattr(model, name) for name in MODEL_FIELDS},
        **{name: getattr(config, name) for name in FLAG_FIELDS},
    )
    settings.check()
    forming.check()
    ranks = world_size or max(MIN_NODES, NODES_A_CLUSTER * (config.clusters or 1))
    check_clusters(forming, ranks)
    return RavnestJob(config, model, settings, forming, ranks)


def _ahead(config: GPT2Flags) -> int | None:
    """Microbatches alive in a cluster's first stage, where the flags say it; all other knobs are refused."""
    for name, value in config.knobs.items():
        if name != "ahead":
            fact = f"{flag(name)} {value} means nothing to Ravnest's clusters: their schedule is async_1f1b"
            raise UsageError(f"{fact}; leave it out")
        if not str(value).isdecimal():
            raise UsageError(f"--ahead {value} is no whole number; give that of a cluster's first stage")
    return int(config.knobs["ahead"]) if config.knobs else None


def _next_multiple(number: int, factor: int) -> int:
    return -(-number // factor) * factor
