"""GPT-2 for the simulator: what each stage of a plan costs, sends and keeps, and which parameters it holds. No torch.

Sizes are exact closed forms of the float32 model, with autocast or without. Seconds are floating-point operations at a
given speed, until they are measured.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

from apps.common.lm.models.gpt2_presets import ModelConfig, layer_costs, layer_shapes, shapes
from apps.gpt2.planning.memory import FLOAT, activation_bytes, boundary_bytes, pending_bytes
from pipelined.programs.partition import partition
from pipelined.programs.plan import Plan
from pipelined.programs.updates.bucket_names import name_buckets
from pipelined.simulation import Parameters, StageCosts, Workload


@dataclass(frozen=True)
class WorkloadOptions:
    """What decides the bytes of a number and of a microbatch, besides model and plan.

    Args:
        itemsize: bytes of a parameter and of an activation's number.
        exact: whether gradients are summed exactly.
        divided: whether the ranks that hold a parameter divide its update.
        masters: bytes of a number of the copies that the optimizer updates; 0: it has none.
        recompute_attention: whether the cores of attentions are computed again in the backward.
        product: bytes of a number of the dtype of autocast; 0: there is none.
    """

    itemsize: int = FLOAT
    exact: bool = False
    divided: bool = False
    masters: int = 0
    recompute_attention: bool = False
    product: int = 0


DEFAULT = WorkloadOptions()
"""The options of float32, with nothing exact, divided or computed again."""


def workload(config: ModelConfig, plan: Plan, sequence: int, options: WorkloadOptions = DEFAULT) -> Workload:
    """The model, cut as the trainer cuts it, on ranks of one floating-point operation a second.

    Args:
        sequence: tokens a sequence.
    """
    itemsize = options.itemsize
    settings: dict[str, Any] = {
        "recompute_attention": options.recompute_attention,
        "product": options.product or FLOAT,
    }
    cut = partition(layer_costs(config, sequence), plan.depth)
    costs = layer_costs(config, sequence)
    stages = []
    for layers in cut:
        forward = float(sum(costs[layer] for layer in layers) * plan.microbatch_size * sequence)
        sizes = (config, layers, plan.microbatch_size, sequence)
        stages.append(
            StageCosts(
                forward=forward,
                backward=2 * forward,
                message_bytes=plan.microbatch_size * sequence * config.d_model * itemsize,
                activation_bytes=activation_bytes(*sizes, **settings) * itemsize // FLOAT,
                pending_bytes=pending_bytes(*sizes, **settings) * itemsize // FLOAT,
                boundary_bytes=boundary_bytes(*sizes) * itemsize // FLOAT,
            )
        )
    parameters = _parameters(config, tuple(cut), itemsize, options.exact)
    undivided = Workload(stages, [replace(parameter, master_itemsize=options.masters) for parameter in parameters])
    return undivided.with_divided_updates(plan) if options.divided else undivided


@lru_cache(maxsize=256)
def _parameters(config: ModelConfig, cut: tuple[range, ...], itemsize: int, exact: bool) -> list[Parameters]:
    """The parameters of each bucket, as the trainer groups them."""
    layers = layer_shapes(config)
    shape_of = shapes(config)
    names_of = {stage: [name for layer in part for name in layers[layer]] for stage, part in enumerate(cut)}
    return [
        Parameters(stages, sum(prod(shape_of[name]) for name in names), len(names), itemsize, exact=exact)
        for stages, names in name_buckets(names_of).items()
    ]
