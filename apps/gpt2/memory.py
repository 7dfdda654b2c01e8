"""The bytes a stage of GPT-2 takes, in closed form: its state, and what it keeps of a live microbatch.

Nothing is measured, and no tensor is created. The forms hold for float32 without dropout or recomputation; the
benchmarks compare them with measured bytes.
"""

from collections.abc import Sequence
from math import prod

from apps.lm.models.gpt2_presets import ModelConfig, layer_shapes
from pipelined.simulation.memory import optimizer_bytes, weight_bytes
from pipelined.simulation.workload import Parameters

FLOAT, LONG = 4, 8
"""Bytes of a number and of a token id."""


def state_bytes(config: ModelConfig, stages: Sequence[range]) -> int:
    """Parameters, gradients and optimizer state of these stages; a tied embedding on both ends is held once."""
    layers = layer_shapes(config)
    shapes = {name: shape for stage in stages for layer in stage for name, shape in layers[layer].items()}
    held = [Parameters((), prod(shape)) for shape in shapes.values()]
    return 2 * weight_bytes(held) + optimizer_bytes(held)


def activation_bytes(config: ModelConfig, stage: range, rows: int, sequence: int) -> int:
    """Bytes that a stage keeps of one microbatch between its forward and its backward.

    A block keeps, for each token, 16 C numbers (the inputs of both norms, their outputs, query, key and value, the
    attention's output, and the 4 C of the feed-forward before and after GELU), mean and deviation of both norms, and
    a log-sum for each head; the head its norm's input, output, mean and deviation, and the logarithms of V
    probabilities. Beside these a stage holds its own output, or the loss.
    Source: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, section 4.1, with a
    fused attention.
    """
    tokens, width, top = rows * sequence, config.d_model, config.layers + 1
    blocks = sum(1 for layer in stage if 0 < layer < top)
    total = FLOAT * tokens * blocks * (16 * width + 4 + config.heads)
    if 0 in stage:
        total += LONG * (tokens + sequence)  # the ids and the positions
    if top not in stage:
        return total + FLOAT * tokens * width
    return total + FLOAT * tokens * (2 * width + 2 + config.vocab) + LONG * tokens + 2 * FLOAT  # targets, loss, count


def pending_bytes(config: ModelConfig, stage: range, rows: int, sequence: int) -> int:
    """Bytes that a stage keeps of one microbatch between the halves of its backward.

    A block keeps 20 C numbers a token: the inputs of its norms and matrices (9 C) and the gradients that came to them
    (11 C), with mean and deviation of both norms; the head the same of its norm and of its matrix, and the targets. The
    first stage sends no gradient, so it leaves everything to the weight half and keeps everything until then.
    """
    if 0 in stage:
        return activation_bytes(config, stage, rows, sequence)
    tokens, width, top = rows * sequence, config.d_model, config.layers + 1
    blocks = sum(1 for layer in stage if layer < top)
    total = FLOAT * tokens * blocks * (20 * width + 4)
    return total + (tokens * (FLOAT * (3 * width + 2 + config.vocab) + LONG) if top in stage else 0)


def boundary_bytes(config: ModelConfig, stage: range, rows: int, sequence: int) -> int:
    """Bytes that a stage keeps of one microbatch instead where it recomputes: what came in and what went out."""
    tokens, number = rows * sequence, FLOAT * config.d_model
    came = LONG if 0 in stage else number
    return tokens * came + (FLOAT if config.layers + 1 in stage else tokens * number)
