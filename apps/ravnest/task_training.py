"""The training of the clusters, from the directory's record and the data. Imports torch."""

import torch

from apps.ravnest.families.registry import TrainingData, family_of
from apps.ravnest.flags.config import RavnestTask
from pipelined.errors import UsageError
from pipelined.ravnest.node.ravnest_training import RavnestTraining
from pipelined.training.job.numerics import Numerics
from pipelined.training.optimizer import OptimizerConfig
from pipelined.training.optimizer.exact import LambConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.float32, "float64": torch.float64}
"""The dtype of parameters and of what stages send; bfloat16 is an autocast inside the forward."""
OPTIMIZERS = {"adamw": OptimizerConfig, "lamb": LambConfig}
"""The settings of each optimizer, by its name in the record."""


def training_of(task: RavnestTask, data: TrainingData) -> RavnestTraining:
    """The training that all nodes share.

    Raises:
        UsageError: it cannot be, or this process has another text or tokenizer.
    """
    if data.digest != task.text:
        fact = f"another text or tokenizer is trained on (digest here: {data.digest[:16]}, there: {task.text[:16]})"
        raise UsageError(f"{fact}; give the --data and --tokenizer of `train`")
    settings = task.settings
    sizes = settings.model(task.vocabulary)
    model, feed = family_of(sizes).build(sizes, settings, data, DTYPES[settings.dtype])
    return RavnestTraining(
        model=model,
        feed=feed,
        steps=settings.steps,
        every=settings.average_every // settings.microbatches,
        microbatch_size=settings.microbatch,
        microbatches=settings.microbatches,
        optimizer_settings=OPTIMIZERS[settings.optimizer](
            settings.lr, settings.steps, settings.warmup, clip=0.0, weight_decay=settings.weight_decay
        ),
        numerics=Numerics(
            dtype=DTYPES[settings.dtype],
            autocast=torch.bfloat16 if settings.dtype == "bfloat16" else None,
            recompute_at_newest=settings.weights == "newest",
            compress=settings.compress,
        ),
        sequence=settings.seq,
        seed=settings.seed,
        overlapped=settings.average == "overlapped",
        by_microbatches=settings.weigh == "microbatches",
    )
