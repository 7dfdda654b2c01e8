"""The training of the clusters, from the directory's record and the data. Imports torch."""

import torch

from apps.common.lm.data.batches import Batches
from apps.common.lm.data.text import Text
from apps.common.lm.data.tokens import TokenFeed
from apps.common.lm.models.gpt2 import UntiedGPT2
from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.ravnest.config import RavnestTask
from apps.ravnest.digits import Digits
from pipelined.errors import UsageError
from pipelined.ravnest.node.ravnest_training import RavnestTraining
from pipelined.training.job import Numerics
from pipelined.training.model import Model
from pipelined.training.optimizer import OptimizerConfig
from pipelined.training.optimizer.exact import LambConfig
from pipelined.training.rank_context import MicrobatchSource

DTYPES = {"float32": torch.float32, "bfloat16": torch.float32, "float64": torch.float64}
"""Of parameters and of what stages send; bfloat16 is an autocast inside the forward."""
OPTIMIZERS = {"adamw": OptimizerConfig, "lamb": LambConfig}
"""The settings of each optimizer, by its name in the record."""


def training_of(task: RavnestTask, data: Text | Digits) -> RavnestTraining:
    """The training that all nodes share.

    Raises:
        UsageError: it cannot be, or this process has another text or tokenizer.
    """
    if data.digest != task.text:
        fact = f"another text or tokenizer is trained on (digest here: {data.digest[:16]}, there: {task.text[:16]})"
        raise UsageError(f"{fact}; give the --data and --tokenizer of `train`")
    settings = task.settings
    (model, feed) = _model_and_feed(task, data)
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


def _model_and_feed(task: RavnestTask, data: Text | Digits) -> tuple[Model, MicrobatchSource]:
    settings = task.settings
    model = task.settings.model(task.vocabulary)
    if isinstance(data, Digits):
        from apps.ravnest.digits_model import DigitsFeed, digits_model

        return digits_model(settings.seed), DigitsFeed(settings, data, DTYPES[settings.dtype])
    assert isinstance(model, ModelConfig)
    data.require_running("Ravnest")
    batches = Batches(data.train, settings.seq, settings.microbatch, settings.microbatches, settings.seed)
    return UntiedGPT2(model), TokenFeed(batches)
