"""The text of a job: read by rank 0 as the flags say, checked against the job, and given to every rank. No torch."""

from functools import partial

from apps.common.flags.run_flags import start_of
from apps.common.lm.data.batches import Batches, validation_windows
from apps.common.lm.data.text import Text, read_text, require_text, share_text
from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.gpt2.config import GPT2Flags
from apps.gpt2.job import GPT2Job
from pipelined.api.data.tokens.mapped import Tokens
from transports import Transport


async def prepare_text(transport: Transport, job: GPT2Job) -> Text:
    """Read a job's text on rank 0 and give it to every rank; see `share_text`."""
    return await share_text(transport, partial(_read, job))


def _read(job: GPT2Job) -> Text:
    text = text_of(job.config, job.model)
    text.require_countable(job.plan)
    require_text(start_of(job.config), text.digests, job.config.new_data)
    batches_of(job, text.train)
    validation_windows(text.validation, job.sequence, text.windows)
    return text


def text_of(config: GPT2Flags, model: ModelConfig) -> Text:
    """The text that the flags name, which the model has symbols enough for.

    Raises:
        UsageError: the model has too few; or see `read_text`.
    """
    tokenizer = config.tokenizer or str(config.init or "")
    text = read_text(config.data, tokenizer, config.val_data, config.eval_windows)
    model.check_vocabulary(text.tokenizer.vocab_size)
    return text


def batches_of(job: GPT2Job, train: Tokens) -> Batches:
    """The training sequences of a job, step by step."""
    return Batches(train, job.sequence, job.plan.rows, job.plan.total_microbatches, job.config.seed)
