"""The most a rank of GPT-2 may hold, in closed form: state of its stages, and D live microbatches of the larger one.

The one rule: nothing is measured here, and no tensor is made. Float32, no dropout, no recomputation.
"""

from apps.gpt2.memory import activation_bytes, state_bytes
from apps.lm.models.gpt2_presets import ModelConfig, layer_costs
from pipelined.programs.partition import partition
from pipelined.programs.plan import Plan


def bound_bytes(config: ModelConfig, plan: Plan, rank: int, sequence: int) -> int:
    """Bytes of state and activations that a rank may hold at once."""
    cut, held = partition(layer_costs(config, sequence), plan.depth), plan.stages_of(rank)
    largest = max(activation_bytes(config, cut[stage], plan.rows, sequence) for stage in held)
    return state_bytes(config, [cut[stage] for stage in held]) + plan.depth * largest
