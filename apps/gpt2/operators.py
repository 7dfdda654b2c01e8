"""GPT-2 for the search over shardings: its multiplications, and the bytes that its ranks hold besides them. No torch.

A tied head and the embedding are one operator, as one matrix has one layout. Splits are by whole sequences and heads in
attention; the loss's statistics, a few numbers a token, are not priced.
"""

from math import prod

from apps.gpt2.memory import FLOAT, activation_bytes
from apps.lm.models.gpt2_presets import ModelConfig, shapes
from pipelined.errors import UsageError
from pipelined.sharding.search.chain import Chain, Operator, transformer_block
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
    if batch % microbatches:
        fact = f"the microbatches do not divide the batch (batch: {batch}, microbatches: {microbatches})"
        raise UsageError(f"{fact}; take --microbatches that divides it")
    rows, tokens, width = batch // microbatches, batch * sequence, config.d_model
    block = transformer_block(tokens, width, sequences=rows, heads=config.heads, layers=config.layers, normed=True)
    head = Operator(
        name="wte" if config.tied else "lm_head",
        matmul=Matmul(tokens, width, config.vocab, embeds=config.tied),
        onward=config.vocab,
        before="residual",
        after=None,
        normed=True,
    )
    operators = [*block, head]
    if not config.tied:
        embedding = Matmul(tokens, config.vocab, width, of_ids=True)
        operators.append(Operator(name="wte", matmul=embedding, onward=width, before=None, after="residual"))
    kept = activation_bytes(config, range(config.layers + 2), rows, sequence) * itemsize // FLOAT
    split = sum(op.repeated * op.matmul.inputs * op.matmul.outputs for op in operators)
    whole = sum(map(prod, shapes(config).values())) - split
    return Chain(
        operators, keeps=True, split_bytes=kept, whole_bytes=whole * STATE_NUMBERS * itemsize, itemsize=itemsize
    )
