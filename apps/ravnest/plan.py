"""`plan`: the sizes of a model's layers in closed form, and the answer as text, JSON or a picture. No torch."""

import json
from collections.abc import Callable, Iterator
from math import prod

from apps.lm.models.gpt2_presets import ModelConfig, layer_costs, layer_shapes
from apps.ravnest.digits import DigitsConfig
from apps.ravnest.flags import Plan
from pipelined.errors import UsageError
from pipelined.ravnest.planning.plan import PlannedCluster, PoolRequest, RavnestPlan, make_plan
from pipelined.ravnest.planning.pool import read_pool
from pipelined.ravnest.planning.stage import NUMBER_BYTES, LayerSize, StageRules

TOKEN_BYTES = 8
BLOCK_WIDTHS = 17
"""Numbers that a block keeps for its backward, in widths a token: its input, both norms' outputs and the sum between
its halves (4), queries, keys and values (3), the attention's result (1), the wide half's product before and after GELU
(8), and its output, which the last block of a stage keeps (1)."""
NORM_NUMBERS = 2
"""Mean and deviation of a token."""
WEIGHT_BYTES = 9
"""With dropout the attention keeps each of its weights before and after it (4 and 4), and a mask (1)."""


def plan(flags: Plan, say: Callable[[str], None]) -> None:
    """Print the plan of a pool, and draw it where asked.

    Raises:
        UsageError: as `read_pool` and `make_plan`, or the picture cannot be drawn.
    """
    layers = () if flags.need else tuple(layer_sizes(flags.model, flags.microbatch, flags.seq))
    request = PoolRequest(
        pool=read_pool(flags.pool),
        layers=layers,
        need=flags.need,
        clusters=flags.forming.clusters,
        balance=flags.forming.balance,
        objective=flags.forming.objective,
        method=flags.method,
        rules=StageRules(flags.weights, ahead=flags.forming.ahead),
    )
    found = make_plan(request)
    if flags.png is not None:
        try:
            from apps.ravnest.drawing import save
        except ModuleNotFoundError as error:
            raise UsageError(f"{error.name} is not installed; pip install 'pipelined[draw]'") from error
        save(found, flags.png)
    if flags.json:
        say(json.dumps(found.plain()))
    else:
        say("\n".join(described(found)))


def layer_sizes(model: ModelConfig | DigitsConfig, microbatch: int, sequence: int) -> Iterator[LayerSize]:
    """Each layer of a model for one microbatch."""
    if isinstance(model, DigitsConfig):
        return model.layer_sizes(microbatch)
    return _gpt2_sizes(model, microbatch, sequence)


def _gpt2_sizes(model: ModelConfig, microbatch: int, sequence: int) -> Iterator[LayerSize]:
    """The embedding, the blocks, and the final norm with the head.

    The activations are those of float32, and each layer counts its output: so stages of several blocks hold up to 6 %
    less.
    """
    tokens, width = microbatch * sequence, model.d_model
    stream, ids, norm = NUMBER_BYTES * tokens * width, TOKEN_BYTES * tokens, NUMBER_BYTES * tokens * NORM_NUMBERS
    mask = tokens * width if model.dropout else 0
    embedding = stream + ids + TOKEN_BYTES * sequence + mask
    head = 2 * stream + norm + NUMBER_BYTES * tokens * model.vocab + ids
    block = BLOCK_WIDTHS * stream + 2 * norm + 2 * mask + _attention_bytes(model, microbatch, sequence)
    kept = [embedding, *[block] * model.layers, head]
    inputs = [ids, *[stream] * (model.layers + 1)]
    for shapes, activations, entering, cost in zip(
        layer_shapes(model), kept, inputs, layer_costs(model, sequence), strict=True
    ):
        yield LayerSize(sum(map(prod, shapes.values())), activations, entering, 3 * tokens * cost)


def _attention_bytes(model: ModelConfig, microbatch: int, sequence: int) -> int:
    """What an attention keeps beside its result: a sum a token and head, or all weights where they are dropped."""
    if not model.dropout:
        return NUMBER_BYTES * microbatch * sequence * model.heads
    return WEIGHT_BYTES * microbatch * model.heads * sequence**2 + sequence**2


def described(plan: RavnestPlan) -> Iterator[str]:
    """The plan in lines for people."""
    yield f"{len(plan.clusters)} clusters by {plan.objective} ({plan.method}), spread {plan.spread_s:.3g} s"
    sent = plan.round_bytes()
    for number, cluster in enumerate(plan.clusters):
        yield f"cluster {number}: transfer {cluster.transfer_s:.3g} s{_pace(cluster)}"
        if not cluster.stages:
            yield "  " + ", ".join(node.name for node in cluster.nodes)
        for stage in cluster.stages:
            layers = f"layers {stage.first}-{stage.end - 1}"
            held = f"{_mib(stage.bytes)} of {_mib(stage.node.ram)}, {stage.alive} alive"
            yield f"  {stage.node.name}: {layers}, {held}, {_mib(sent[stage.node.name])} a round"
    if plan.rings:
        yield f"{len(plan.rings)} rings"
    if plan.waiting:
        yield f"waiting, too small for any layer: {', '.join(node.name for node in plan.waiting)}"


def _pace(cluster: PlannedCluster) -> str:
    return "" if cluster.microbatch_s is None else f", a microbatch every {cluster.microbatch_s:.3g} s"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
