"""The bytes that a stage of GPT-2 keeps of a live microbatch, in closed form.

Nothing is measured, and no tensor is created. The forms hold for float32; a test compares them with counted bytes.
"""

from apps.lm.models.gpt2_presets import ModelConfig

FLOAT, LONG, FACTOR = 4, 8, 8
"""Bytes of a number, of a token id, and of a scalar by which a tensor is divided."""


def activation_bytes(config: ModelConfig, stage: range, rows: int, sequence: int, *, again: bool = False) -> int:
    """Bytes that a stage keeps of one microbatch between its forward and its backward.

    A block keeps, for each token, 16 C numbers (the inputs of both norms, their outputs, query, key and value, the
    attention's output, and the 4 C of the feed-forward before and after GELU), mean and deviation of both norms, and
    the core of its attention (`core_bytes`); the head its norm's input, output, mean and deviation, and the logarithms
    of V probabilities. Beside these a stage holds its own output, or the loss. Each dropout adds its mask, a byte a
    number, and a scalar.

    Args:
        again: whether the cores are computed again in the backward. One of them is there at a time, beside the
            gradients, which are not counted either.
    Source: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, section 4.1, with a
    fused attention.
    """
    tokens, width, top = rows * sequence, config.d_model, config.layers + 1
    blocks = sum(1 for layer in stage if 0 < layer < top)
    drops = config.dropout > 0.0
    mask = drops * (tokens * width + FACTOR)
    total = blocks * (tokens * FLOAT * (16 * width + 4) + 2 * mask + 2 * drops * FACTOR)
    total += 0 if again else blocks * core_bytes(config, rows, sequence)
    if 0 in stage:
        total += LONG * (tokens + sequence) + mask  # the ids and the positions
    if top not in stage:
        return total + FLOAT * tokens * width
    return total + FLOAT * tokens * (2 * width + 2 + config.vocab) + LONG * tokens + 2 * FLOAT  # targets, loss, count


def core_bytes(config: ModelConfig, rows: int, sequence: int) -> int:
    """Bytes that the core of one attention keeps of a microbatch, besides its inputs and its output.

    Fused it keeps one log-sum for each head and token. With dropout it is not fused, and keeps for each head and pair
    of tokens its weight before and after, and the mask; and once which tokens come later. That is 9 H T² bytes a row.
    """
    pairs = rows * config.heads * sequence**2
    return (2 * FLOAT + 1) * pairs + sequence**2 if config.dropout else FLOAT * rows * sequence * config.heads


def pending_bytes(config: ModelConfig, stage: range, rows: int, sequence: int, *, again: bool = False) -> int:
    """Bytes that a stage keeps of one microbatch between the halves of its backward.

    A block keeps 20 C numbers a token: the inputs of its norms and matrices (9 C) and the gradients that came to them
    (11 C), with mean and deviation of both norms; the head the same of its norm and of its matrix, and the targets. The
    first stage sends no gradient, so it leaves everything to the weight half and keeps everything until then.
    """
    if 0 in stage:
        return activation_bytes(config, stage, rows, sequence, again=again)
    tokens, width, top = rows * sequence, config.d_model, config.layers + 1
    blocks = sum(1 for layer in stage if layer < top)
    total = FLOAT * tokens * blocks * (20 * width + 4)
    return total + (tokens * (FLOAT * (3 * width + 2 + config.vocab) + LONG) if top in stage else 0)


def boundary_bytes(config: ModelConfig, stage: range, rows: int, sequence: int) -> int:
    """Bytes that a stage keeps of one microbatch instead where it recomputes: what came in and what went out."""
    tokens, number = rows * sequence, FLOAT * config.d_model
    came = LONG if 0 in stage else number
    return tokens * came + (FLOAT if config.layers + 1 in stage else tokens * number)
