"""The most a rank of GPT-2 may hold, in closed form: state of its stages, and D live microbatches of the larger one.

The one rule: nothing is measured here, and no tensor is made. Float32, no dropout, no recomputation.
"""

from math import prod

from apps._presets import ModelConfig, layer_costs, layer_shapes
from pipelined.partition import partition
from pipelined.plan import Plan

FLOAT, LONG = 4, 8
"""Bytes of a number and of a token id."""
COPIES = 4
"""Of a parameter: its value, its gradient, and AdamW's two moments."""


def bound_bytes(config: ModelConfig, plan: Plan, rank: int, sequence: int) -> int:
    """Bytes of state and activations that a rank may hold at once."""
    cut, held = partition(layer_costs(config, sequence), plan.depth), plan.stages_of(rank)
    largest = max(activation_bytes(config, cut[stage], plan.rows, sequence) for stage in held)
    return state_bytes(config, [cut[stage] for stage in held]) + plan.depth * largest


def state_bytes(config: ModelConfig, stages: list[range]) -> int:
    """Parameters, gradients and optimizer state of these stages; a tied embedding on both ends is held once.

    AdamW counts the updates of each parameter in a number of its own.
    """
    layers = layer_shapes(config)
    shapes = {name: shape for stage in stages for layer in stage for name, shape in layers[layer].items()}
    return FLOAT * sum(COPIES * prod(shape) + 1 for shape in shapes.values())


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
