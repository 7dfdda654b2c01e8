"""The parameters one rank holds: built, tied, laid out for the gradient sums, and named for checkpoints.

A rank that holds the first and the last stage holds a tied embedding once. State is keyed by parameter name: this is
the only place that knows which stage a name lies in.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from pipelined.bucket_names import Stages, name_buckets
from pipelined.buckets import Bucket, fill_bucket
from pipelined.model import Model
from pipelined.partition import partition
from pipelined.plan import Plan


@dataclass(frozen=True)
class Replica:
    """One rank's share of the model.

    Args:
        modules: a built part for each stage held.
        parameters: every parameter held, once, by name.
        buckets: what is summed together, those held here.
        channels: the number of every bucket of the job, the same on all ranks.
        names: every parameter of the whole model, in the model's order.
        rank: whose this is.
    """

    modules: Mapping[int, nn.Module]
    parameters: Mapping[str, nn.Parameter]
    buckets: tuple[Bucket, ...]
    channels: Mapping[Stages, int]
    names: tuple[str, ...]
    rank: int

    @property
    def owned(self) -> dict[str, nn.Parameter]:
        """The parameters this rank answers for: each belongs to exactly one rank of the job."""
        return {name: p for b in self.buckets if b.owner == self.rank for name, p in b.parameters.items()}

    def squares(self) -> dict[str, float]:
        """The squared gradient norm of each owned parameter, in float64."""
        norms = {n: torch.linalg.vector_norm(p.grad, dtype=torch.float64) for n, p in self.owned.items()}
        return {name: float(norm) ** 2 for name, norm in norms.items()}

    def clear_gradients(self) -> None:
        for bucket in self.buckets:
            bucket.gradient.zero_()


def build_replica(
    model: Model, plan: Plan, rank: int, sequence: int, dtype: torch.dtype, device: torch.device, seed: int | None
) -> Replica:
    """Build what a rank holds.

    Args:
        sequence: tokens a sequence, for the layers' costs.
        seed: of the initial values; None leaves them unset, to be loaded.
    Raises:
        PlanError: more stages than layers.
    """
    cut = partition(model.costs(sequence), plan.depth)
    names_of = {s: [n for n, _ in model.build(r, dtype, "meta", None).named_parameters()] for s, r in enumerate(cut)}
    held = plan.stages_of(rank)
    modules = {stage: model.build(cut[stage], dtype, device, seed) for stage in held}
    parameters = _tie(modules)
    named = name_buckets(names_of)
    buckets = tuple(
        fill_bucket(plan, stages, {name: parameters[name] for name in names})
        for stages, names in named.items()
        if rank in plan.holders(*stages)
    )
    channels = {stages: number for number, stages in enumerate(named)}
    names = tuple(dict.fromkeys(name for stage in range(plan.depth) for name in names_of[stage]))
    return Replica(modules, parameters, buckets, channels, names, rank)


def _tie(modules: Mapping[int, nn.Module]) -> dict[str, nn.Parameter]:
    """Make parameters of one name in several stages one parameter; return all by name."""
    parameters: dict[str, nn.Parameter] = {}
    for module in modules.values():
        for name, parameter in list(module.named_parameters()):
            if name in parameters:
                path, _, leaf = name.rpartition(".")
                setattr(module.get_submodule(path), leaf, parameters[name])
            else:
                parameters[name] = parameter
    return parameters
