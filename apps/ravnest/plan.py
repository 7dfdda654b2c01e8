"""What is planned for a training, with its layers' sizes in closed form, and `plan`: the answer shown. No torch."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

from apps.ravnest.families.registry import ModelSizes, family_of
from apps.ravnest.flags.commands import Plan
from apps.ravnest.flags.config import RavnestConfig
from apps.ravnest.flags.groups import FormingFlags
from pipelined.errors import UsageError
from pipelined.measurement.timed.codec import ratio_of
from pipelined.ravnest.planning.backups import STEPS_APART, plan_with_backups
from pipelined.ravnest.planning.plan import PoolRequest, RavnestPlan
from pipelined.ravnest.planning.pool import read_pool
from pipelined.ravnest.planning.stage_sizes import LayerSize, StageRules


def plan(flags: Plan, say: Callable[[str], None]) -> None:
    """Print the plan of a pool, and draw it where asked.

    Raises:
        UsageError: as `read_pool` and `plan_with_backups`, or the picture cannot be drawn.
    """
    request = pool_request(flags, None if flags.need else flags.find_model(), flags.forming, saves=flags.saves)
    request = replace(request, pool=read_pool(flags.pool), need=flags.need, method=flags.method)
    chosen_plan = plan_with_backups(request)
    if flags.png is not None:
        try:
            from apps.ravnest.drawing import save
        except ModuleNotFoundError as error:
            raise UsageError(f"{error.name} is not installed; pip install 'pipelined[draw]'") from error
        save(chosen_plan, flags.png)
    if flags.json:
        say(json.dumps(chosen_plan.to_dict()))
    else:
        say("\n".join(plan_lines(chosen_plan)))


def pool_request(
    training: Plan | RavnestConfig,
    model: ModelSizes | None,
    forming: FormingFlags,
    *,
    saves: bool = False,
) -> PoolRequest:
    """What to plan for this training, without the pool.

    Args:
        model: None: it is not described by layers.
        saves: whether the nodes save.
    """
    layers = model and layer_sizes(model, training.microbatch, training.seq, training.dtype)
    return PoolRequest(
        pool=(),
        layers=tuple(layers or ()),
        clusters=forming.clusters,
        balance=forming.balance,
        objective=forming.objective,
        rules=StageRules(
            training.weights,
            ahead=forming.ahead,
            blocking=training.average == "blocking",
            saves=saves,
            behind=STEPS_APART * -(-training.batch // training.microbatch),
            coded=ratio_of(training.compress, training.dtype),
        ),
        backups=forming.backups,
    )


def layer_sizes(model: ModelSizes, microbatch_size: int, sequence: int, dtype: str = "float32") -> Iterator[LayerSize]:
    """Each layer of a model for one microbatch."""
    return family_of(model).layer_sizes(model, microbatch_size, sequence, dtype)


def plan_lines(plan: RavnestPlan) -> Iterator[str]:
    """The plan in lines for people."""
    yield f"clusters: {len(plan.clusters)}, by {plan.objective} ({plan.method}), spread {plan.spread_s:.3g} s"
    bytes_by_node = plan.round_bytes()
    for number, cluster in enumerate(plan.clusters):
        yield ", ".join(filter(None, [f"cluster {number}: transfer {cluster.transfer_s:.3g} s", cluster.pace_text]))
        if not cluster.stages:
            yield "  " + ", ".join(node.name for node in cluster.nodes)
        for stage in cluster.stages:
            layers = f"layers {stage.first}-{stage.end - 1}"
            memory = f"{_mib(stage.bytes)} of {_mib(stage.node.ram)}, {stage.alive} alive"
            memory += f", backup {stage.backup.name}" if stage.backup else ""
            yield f"  {stage.node.name}: {layers}, {memory}, {_mib(bytes_by_node[stage.node.name])} a round"
    if plan.rings:
        yield f"rings: {len(plan.rings)}"
    if plan.waiting:
        reason = "too small for any layer, or for a place to back up"
        yield f"waiting, {reason}: {', '.join(node.name for node in plan.waiting)}"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
