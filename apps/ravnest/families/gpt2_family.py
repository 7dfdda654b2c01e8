"""GPT-2 in Ravnest, with a head of its own: its layers' sizes in closed form, its text, and its results. No torch until
it is built.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps.common.flags.command_flags import FinalFlags, OutputFlags, TextFlags
from apps.common.flags.paths import check_export
from apps.common.lm.data.text import Text, read_text
from apps.common.lm.models.gpt2_presets import PRESETS, ModelConfig, layer_costs, layer_shapes
from pipelined.process.reporting.progress import Say
from pipelined.ravnest.planning.stage_sizes import NUMBER_BYTES, LayerSize
from pipelined.state.stages.whole_model import WholeModel

if TYPE_CHECKING:
    import torch

    from pipelined.training.job.model import Model
    from pipelined.training.job.rank_context import MicrobatchSource

TOKEN_BYTES = 8
BYTES = {"float32": (4, 4), "bfloat16": (4, 2), "float64": (8, 8)}
"""Bytes by dtype: of a parameter or a number of the stream between layers, and of a number of a matrix product."""
STREAM_WIDTHS, PRODUCT_WIDTHS = 3, 14
"""Numbers that a block keeps for its backward, in widths a token. Three are of the stream: the block's input, the sum
between its halves, and its output, which the last block of a stage keeps. The others are of products: both norms'
outputs (2), queries, keys and values (3), the attention's result (1), the wide half's product before and after GELU
(8)."""
NORM_NUMBERS = 2
"""Mean and deviation of a token."""


class GPT2Family:
    """GPT-2 on text; every family has these attributes and methods.

    Attributes:
        presets: its sizes by name.
        kind: what its saves are called; None: any other name.
    """

    presets: Mapping[str, ModelConfig] = PRESETS
    kind = None

    def sizes(
        self, preset: str, overrides: Mapping[str, Any], sequence: int, vocabulary: int | None = None
    ) -> ModelConfig:
        """A preset with the given sizes. Raises UsageError: they do not fit one another or the sequence."""
        config = replace(self.presets[preset], tied=False, **overrides)
        config.check_sequence(sequence)
        return config if vocabulary is None else replace(config, vocab=vocabulary)

    def layer_sizes(self, model: Any, rows: int, sequence: int, dtype: str) -> Iterator[LayerSize]:
        """Each layer of a model for one microbatch of these rows."""
        return gpt2_sizes(model, rows, sequence, dtype)

    def check(self, files: Sequence[Path] = (), sample: int = 0, export: Path | None = None) -> None:
        """Raises UsageError: files are not for it; it has no text to sample; or the folder holds another kind."""
        if export is not None:
            check_export(export)

    def read(self, flags: TextFlags) -> Text:
        """What is trained on. Raises UsageError: as `check`, or it cannot be read."""
        return read_text(flags.data, flags.tokenizer)

    def symbols(self, data: Any) -> int:
        """The size of the vocabulary; or the number of classes."""
        return data.tokenizer.vocab_size

    def build(self, model: Any, settings: Any, data: Any, dtype: "torch.dtype") -> "tuple[Model, MicrobatchSource]":
        """The model, and what feeds it. Raises UsageError: the data are too few."""
        from apps.common.lm.data.batches import Batches
        from apps.common.lm.data.tokens import TokenFeed
        from apps.common.lm.models.gpt2 import UntiedGPT2

        data.require_running("Ravnest")
        batches = Batches(data.train, settings.seq, settings.microbatch, settings.microbatches, settings.seed)
        return UntiedGPT2(model), TokenFeed(batches)

    async def write(
        self, tensors: "Mapping[str, torch.Tensor]", task: Any, data: Any, flags: FinalFlags, say: Say
    ) -> None:
        """Write the average at the end of a training, as the flags request."""
        from apps.common.lm.export import FinalOutput, model_of_identity, say_digest
        from apps.common.lm.weights import Weights

        settings = task.settings
        model = settings.model(task.vocabulary)
        weights = Weights(model_of_identity(model.identity()), tensors)  # as `export` takes it from what is saved
        await say_digest(weights, settings.steps, say)
        output = FinalOutput(flags.export, flags.sample, flags.prompt, model.positions, settings.seed)
        await output.write(weights, data.tokenizer, say)

    async def export(self, model: WholeModel, output: OutputFlags, say: Say) -> None:
        """Write a saved model. Raises UsageError: another tokenizer, or the folder holds something else."""
        from apps.common.lm.export import export_whole

        await export_whole(model, output, say)


def gpt2_sizes(model: ModelConfig, microbatch_size: int, sequence: int, dtype: str) -> Iterator[LayerSize]:
    """The embedding, the blocks, and the final norm with the head.

    Each layer counts its output: so stages of several blocks hold less, up to 6 %, and with bfloat16 up to 10 %. With
    bfloat16 the graph of each microbatch keeps its own copies of the matrices, in 2 bytes a number.
    """
    (number, product) = BYTES[dtype]
    tokens = microbatch_size * sequence
    width = model.d_model
    stream = number * tokens * width
    ids = TOKEN_BYTES * tokens
    norm = number * tokens * NORM_NUMBERS
    operand = product * tokens * width
    mask = tokens * width if model.dropout else 0
    embedding = stream + ids + TOKEN_BYTES * sequence + mask
    head = stream + operand + norm + number * tokens * model.vocab + ids
    block = STREAM_WIDTHS * stream + PRODUCT_WIDTHS * operand + 2 * norm + 2 * mask
    block += _attention_bytes(model, microbatch_size, sequence, product)
    kept_bytes = [embedding, *[block] * model.layers, head]
    input_bytes = [ids, *[stream] * (model.layers + 1)]
    for layer, (shapes, cost) in enumerate(zip(layer_shapes(model), layer_costs(model, sequence), strict=True)):
        sizes = shapes.values()
        cast_bytes = (
            product * sum(prod(shape) for shape in sizes if len(shape) > 1) if layer and product < number else 0
        )
        numbers = sum(map(prod, sizes))
        work = 3 * tokens * cost
        yield LayerSize(numbers, kept_bytes[layer] + cast_bytes, input_bytes[layer], work, number, waits=layer > 0)


def _attention_bytes(model: ModelConfig, microbatch_size: int, sequence: int, product: int) -> int:
    """What an attention keeps beside its result: a sum a token and head, or all weights where they are dropped.

    It keeps each dropped weight before and after the dropout, and a mask of a byte.
    """
    if not model.dropout:
        return max(product, NUMBER_BYTES) * microbatch_size * sequence * model.heads
    return (2 * product + 1) * microbatch_size * model.heads * sequence**2 + sequence**2
