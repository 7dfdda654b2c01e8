"""Makes what is simulated from numbers by name. It refuses an unreadable value; the message names the readable ones.

The names are those of the flags of `python -m pipelined simulate`, with a dash or an underscore.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from collectives import Links
from pipelined.api.laboratory.cost_names import COSTS, LINK, SIZES, require_mapping, require_names
from pipelined.api.laboratory.proof import as_list, shape_of
from pipelined.errors import UsageError, require_number, whole
from pipelined.programs.costs import PerStage
from pipelined.programs.plan import Plan
from pipelined.schedules import KnobValue, SomeSchedule, name_of
from pipelined.simulation import Machine, Parameters, StageCosts, Workload
from pipelined.simulation.machine import FREE

FLOAT = 4
"""Bytes of a parameter."""


def plan_of(
    schedule: SomeSchedule,
    depth: int | None,
    microbatches: int | None,
    *,
    width: int,
    tensor: int,
    knobs: Mapping[str, KnobValue],
) -> Plan:
    """The arrangement. The microbatch's size does not matter here; it is 2 so that it can be halved."""
    name = name_of(schedule)
    shape = shape_of(name, depth, microbatches, knobs)
    return Plan(name, shape.depth, width, 2, shape.microbatches, knobs=shape.knobs, tensor=tensor)


def workload_of(costs: Mapping[str, PerStage], memory: Mapping[str, PerStage], depth: int) -> Workload:
    """The cost of every stage, and parameters of its own.

    Args:
        costs: seconds by the names of `COSTS`.
        memory: bytes by the names of `SIZES`.
    """
    seconds = _numbers_of_stages("costs", costs, COSTS, depth)
    sizes = _numbers_of_stages("memory", memory, SIZES, depth)
    stages, parameters = [], []
    for stage in range(depth):
        for name, size in sizes[stage].items():
            if not math.isfinite(size):
                raise UsageError(f"`memory=`: {name} must be finite bytes from 0 up (got: {size})")
        elements, odd_bytes = divmod(int(sizes[stage].pop("parameters", 0)), FLOAT)
        if odd_bytes:
            fact = f"`memory=`: parameters={FLOAT * elements + odd_bytes} is not a multiple of the bytes of a parameter"
            raise UsageError(f"{fact} ({FLOAT}); give a multiple of {FLOAT}")
        fields: dict[str, Any] = {name.replace("-", "_"): number for name, number in seconds[stage].items()}
        fields |= {f"{name}_bytes": int(size) for name, size in sizes[stage].items()}
        stages.append(StageCosts(**fields))
        parameters += [Parameters((stage,), elements)] if elements else []
    return Workload(stages, parameters)


def machine_of(
    links: Mapping[str, float] | None,
    far: Mapping[str, float] | None,
    *,
    node: int = 0,
    cores: int = 0,
    interference: float = 0.0,
    unstated: Links = FREE,
) -> Machine:
    """Links, nodes and cores.

    Args:
        links, far: costs by the names of `LINK`; what is not named is 0.
        unstated: the links where `links` is empty.
    """
    require_number("interference", interference)
    near = link_of("links", links) if links else unstated
    return Machine(near, link_of("far", far) if far else None, whole("node", node), whole("cores", cores), interference)


def link_of(what: str, costs: Mapping[str, float]) -> Links:
    """Links from costs by name.

    Raises:
        UsageError: an unknown name, or a number that is not a cost.
    """
    require_mapping(what, costs, "{'alpha': 1e-5}")
    require_names(what, costs, LINK)
    for name, cost in costs.items():
        require_number(f"`{what}=`: {name}", cost)
        if not 0 <= cost < float("inf"):
            raise UsageError(f"`{what}={name}={cost:g}` must be finite seconds from 0 up")
    alpha, beta, gamma = (costs.get(name, 0.0) for name in LINK)
    return Links(alpha, beta, gamma)


def _numbers_of_stages(
    what: str, named_numbers: Mapping[str, PerStage], known_names: Sequence[str], depth: int
) -> list[dict[str, float]]:
    """The numbers of each stage by name; a single number is for every stage.

    Raises:
        UsageError: an unknown name, or one with neither one number nor one for every stage.
    """
    require_mapping(what, named_numbers)
    values = {str(name).replace("_", "-"): as_list(numbers) for name, numbers in named_numbers.items()}
    require_names(what, values, known_names)
    for name, numbers in values.items():
        for number in numbers:
            require_number(f"`{what}=`: {name}", number)
        if len(numbers) not in (1, depth):
            fact = f"`{what}=` needs one value for {name}, or one for each stage (values: {len(numbers)}"
            raise UsageError(f"{fact}, depth: {depth}); give one number, or {depth}")
    return [{name: numbers[stage % len(numbers)] for name, numbers in values.items()} for stage in range(depth)]
