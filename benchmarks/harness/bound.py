"""What a rank of GPT-2 will hold and the most it may, in closed form: state of its stages, and live microbatches.

Nothing is measured here, and no tensor is made. Float32, no dropout, no recomputation.
"""

from collections.abc import Sequence
from math import prod

from apps.common.lm.models.gpt2_presets import ModelConfig, layer_costs, layer_shapes
from apps.gpt2.planning.memory import activation_bytes
from apps.gpt2.planning.workload import workload
from pipelined.programs.partition import partition
from pipelined.programs.plan import Plan
from pipelined.simulation import Parameters
from pipelined.simulation.memory import optimizer_bytes, planned_memory, weight_bytes


def state_bytes(config: ModelConfig, stages: Sequence[range]) -> int:
    """Parameters, gradients and optimizer state of these stages; a tied embedding on both ends is held once."""
    layers = layer_shapes(config)
    shapes = {name: shape for stage in stages for layer in stage for name, shape in layers[layer].items()}
    held = [Parameters((), prod(shape)) for shape in shapes.values()]
    return 2 * weight_bytes(held) + optimizer_bytes(held)


def bound_bytes(config: ModelConfig, plan: Plan, rank: int, sequence: int) -> int:
    """Bytes of state and activations that a rank may hold at once."""
    cut, held = partition(layer_costs(config, sequence), plan.depth), plan.stages_of(rank)
    largest = max(activation_bytes(config, cut[stage], plan.rows, sequence) for stage in held)
    return state_bytes(config, [cut[stage] for stage in held]) + plan.depth * largest


def planned_rank_memory(config: ModelConfig, plan: Plan, rank: int, sequence: int) -> int:
    """Bytes of state and activations that a rank holds at its fullest, as `apps.gpt2 --dry-run` says."""
    _, worker = plan.group_and_worker(rank)
    return round(planned_memory(plan, workload(config, plan, sequence), recompute=False)[worker].total)
