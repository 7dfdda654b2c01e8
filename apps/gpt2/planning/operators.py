"""GPT-2 for the search over shardings: its multiplications, and the bytes that its ranks hold besides them. No torch.

A tied head and the embedding are one operator, as one matrix has one layout. Splits are by whole sequences and heads in
attention; the loss's statistics, a few numbers a token, are not priced.
"""

from math import prod

from apps.common.lm.models.gpt2_presets import ModelConfig, block_multiplications, shapes
from apps.common.run.choose import rows_of
from apps.gpt2.planning.memory import FLOAT, activation_bytes
from pipelined.sharding.search.chain import Chain, Operator
from pipelined.sharding.search.matmul import STATE_NUMBERS, Matmul


def chain(config: ModelConfig, batch: int, sequence: int, microbatches: int, itemsize: int = FLOAT) -> Chain:
    """The blocks, all split alike, then the head, and an embedding of its own where they are not tied.

    Args:
        batch: sequences a step.
        sequence: tokens a sequence.
        itemsize: bytes of a parameter and of an activation's number.
    Raises:
        UsageError: the microbatches do not divide the batch.
    """
    rows = rows_of(batch, microbatches)
    tokens = batch * sequence
    width = config.d_model
    block = blocks(config, tokens, sequences=rows)
    head = Operator(
        name="wte" if config.tied else "lm_head",
        matmul=Matmul(tokens, width, config.vocab, embeds=config.tied),
        output_columns=config.vocab,
        input_stream="residual",
        output_stream=None,
        normed=True,
        positions=config.positions * width,
    )
    operators = [*block, head]
    if not config.tied:
        embedding = Matmul(tokens, config.vocab, width, of_ids=True)
        operators.append(
            Operator(name="wte", matmul=embedding, output_columns=width, input_stream=None, output_stream="residual")
        )
    kept_bytes = activation_bytes(config, range(config.layers + 2), rows, sequence) * itemsize // FLOAT
    split = sum(op.repeated * op.matmul.inputs * op.matmul.outputs for op in operators)
    unsplit = sum(map(prod, shapes(config).values())) - split
    return Chain(
        operators, keeps=True, split_bytes=kept_bytes, whole_bytes=unsplit * STATE_NUMBERS * itemsize, itemsize=itemsize
    )


def blocks(config: ModelConfig, tokens: int, *, sequences: int | None = None, normed: bool = True) -> list[Operator]:
    """The multiplications of all blocks, which are split alike; the residual stream between them keeps its layout.

    Args:
        tokens: tokens a step.
        sequences: sequences in a microbatch; None: any number.
        normed: also price the statistics of the norms.
    """
    width = config.d_model
    return [
        Operator(
            name=name,
            matmul=Matmul(tokens, prod(product.inputs), prod(product.outputs)),
            output_columns=width if product.output_stream == "core" else prod(product.outputs),
            input_stream=product.input_stream,
            output_stream=product.output_stream,
            attention=product.output_stream == "core",
            sequences=sequences if product.output_stream == "core" else None,
            heads=config.heads if product.output_stream == "core" else None,
            repeated=config.layers,
            normed=normed and product.norm is not None,
            biased=normed,
        )
        for name, product in block_multiplications(config).items()
    ]
