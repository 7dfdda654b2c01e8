"""The bytes that a stage of GPT-2 keeps of a live microbatch, in closed form.

Nothing is measured, and no tensor is created. The forms hold for float32, with autocast or without; a test compares
them with counted bytes. With autocast the residual stream, norms and the loss stay float32. What products take and give
has the dtype of autocast, and each microbatch alive keeps the weights that its forward cast.
"""

from apps.common.lm.models.gpt2_presets import ModelConfig

FLOAT, LONG, FACTOR = 4, 8, 8
"""Bytes of a number, of a token id, and of a scalar by which a tensor is divided."""


def activation_bytes(
    config: ModelConfig,
    stage: range,
    rows: int,
    sequence: int,
    *,
    recompute_attention: bool = False,
    product: int = FLOAT,
) -> int:
    """Bytes that a stage keeps of one microbatch between its forward and its backward.

    A block keeps, for each token, 16 C numbers (the inputs of both norms, and of products their outputs, query, key and
    value, the attention's output, and the 4 C of the feed-forward before and after GELU), mean and deviation of both
    norms, and the core of its attention (`core_bytes`); the head its norm's input, output, mean and deviation, and the
    logarithms of V probabilities. Beside these a stage holds its own output, or the loss. Each dropout adds its mask, a
    byte a number, and a scalar.

    Args:
        recompute_attention: whether the cores are computed again in the backward. One of them is there at a time,
            beside the gradients, which are not counted either.
        product: bytes of a number of the dtype of autocast; those of float32 without it.
    Source: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, section 4.1, with a
    fused attention.
    """
    tokens = rows * sequence
    width = config.d_model
    top = config.layers + 1
    blocks = sum(1 for layer in stage if 0 < layer < top)
    drops = config.dropout > 0.0
    mask = drops * (tokens * width + FACTOR)
    total = blocks * (tokens * (FLOAT * (2 * width + 4) + product * 14 * width) + 2 * mask + 2 * drops * FACTOR)
    total += 0 if recompute_attention else blocks * core_bytes(config, rows, sequence, product=product)
    total += cast_bytes(config, stage, product)
    if 0 in stage:
        total += LONG * (tokens + sequence) + mask  # the ids and the positions
    if top not in stage:
        return total + FLOAT * tokens * width
    logits = FLOAT * tokens * (width + 2 + config.vocab) + product * tokens * width
    return total + logits + LONG * tokens + 2 * FLOAT  # targets, loss, count


def cast_bytes(config: ModelConfig, stage: range, product: int) -> int:
    """Bytes of the matrices that autocast converts for each microbatch: 12 C² of a block, V C of the head."""
    blocks = sum(1 for layer in stage if 0 < layer <= config.layers)
    numbers = blocks * 12 * config.d_model**2 + (config.layers + 1 in stage) * config.vocab * config.d_model
    return 0 if product == FLOAT else product * numbers


def core_bytes(config: ModelConfig, rows: int, sequence: int, *, product: int = FLOAT) -> int:
    """Bytes that the core of one attention keeps of a microbatch, besides its inputs and its output.

    Fused it keeps one log-sum for each head and token. With dropout it is not fused, and keeps for each head and pair
    of tokens its weight before and after, and the mask; and once which tokens come later. That is 9 H T² bytes a row of
    float32.
    """
    pairs = rows * config.heads * sequence**2
    return (2 * product + 1) * pairs + sequence**2 if config.dropout else FLOAT * rows * sequence * config.heads


def pending_bytes(
    config: ModelConfig,
    stage: range,
    rows: int,
    sequence: int,
    *,
    recompute_attention: bool = False,
    product: int = FLOAT,
) -> int:
    """Bytes that a stage keeps of one microbatch between the halves of its backward.

    A block keeps 20 C numbers a token: the inputs of its norms and matrices (9 C) and the gradients that came to them
    (11 C), with mean and deviation of both norms; the head the same of its norm and of its matrix, and the targets. Of
    these 16 C of a block, and C + V of the head, are inputs and gradients of products. The first stage sends no
    gradient, so it leaves everything to the weight half and keeps everything until then.
    """
    if 0 in stage:
        return activation_bytes(config, stage, rows, sequence, recompute_attention=recompute_attention, product=product)
    tokens = rows * sequence
    width = config.d_model
    top = config.layers + 1
    blocks = sum(1 for layer in stage if layer < top)
    total = tokens * blocks * (FLOAT * (4 * width + 4) + product * 16 * width) + cast_bytes(config, stage, product)
    head = FLOAT * (2 * width + 2) + product * (width + config.vocab) + LONG
    return total + (tokens * head if top in stage else 0)


def boundary_bytes(config: ModelConfig, stage: range, rows: int, sequence: int) -> int:
    """Bytes that a stage keeps of one microbatch instead where it recomputes: what came in and what went out."""
    tokens = rows * sequence
    stream = FLOAT * config.d_model
    input_bytes = LONG if 0 in stage else stream
    return tokens * input_bytes + (FLOAT if config.layers + 1 in stage else tokens * stream)
