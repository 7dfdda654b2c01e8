"""Buckets of parameter names: parameters that the same stages hold are summed together. No torch.

All ranks, and programs that only price a job, derive the same buckets in the same order.
"""

from collections.abc import Mapping, Sequence

Stages = tuple[int, ...]
"""The stages that hold every parameter of a bucket, ascending; they are the bucket's name."""


def name_buckets(names_of: Mapping[int, Sequence[str]]) -> dict[Stages, list[str]]:
    """Group parameter names by the set of stages that hold them; sort the groups by their stages.

    Args:
        names_of: the parameter names of every stage of the model.
    """
    stages_of: dict[str, list[int]] = {}
    for stage in sorted(names_of):
        for name in names_of[stage]:
            stages_of.setdefault(name, []).append(stage)
    buckets: dict[Stages, list[str]] = {}
    for name, stages in stages_of.items():
        buckets.setdefault(tuple(stages), []).append(name)
    return dict(sorted(buckets.items()))
