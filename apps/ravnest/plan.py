"""What is planned for a training, with its layers' sizes in closed form, and `plan`: the answer shown. No torch."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod

from apps.common.lm.models.gpt2_presets import ModelConfig, layer_costs, layer_shapes
from apps.ravnest.config import RavnestConfig
from apps.ravnest.digits import DigitsConfig
from apps.ravnest.flag_groups import FormingFlags
from apps.ravnest.flags import Plan
from pipelined.errors import UsageError
from pipelined.measurement.timed.codec import ratio_of
from pipelined.ravnest.planning.backups import STEPS_APART, plan_with_backups
from pipelined.ravnest.planning.plan import PoolRequest, RavnestPlan
from pipelined.ravnest.planning.pool import read_pool
from pipelined.ravnest.planning.stage_sizes import NUMBER_BYTES, LayerSize, StageRules

TOKEN_BYTES = 8
BYTES = {"float32": (4, 4), "bfloat16": (4, 2), "float64": (8, 8)}
"""By dtype: of a parameter and of a number of the stream between layers, and of what matrix products take and give."""
STREAM_WIDTHS, PRODUCT_WIDTHS = 3, 14
"""Numbers that a block keeps for its backward, in widths a token. Of the stream: its input, the sum between its halves,
and its output, which the last block of a stage keeps. Of products: both norms' outputs (2), queries, keys and values
(3), the attention's result (1), the wide half's product before and after GELU (8)."""
NORM_NUMBERS = 2
"""Mean and deviation of a token."""


def plan(flags: Plan, say: Callable[[str], None]) -> None:
    """Print the plan of a pool, and draw it where asked.

    Raises:
        UsageError: as `read_pool` and `plan_with_backups`, or the picture cannot be drawn.
    """
    request = pool_request(flags, None if flags.need else flags.find_model(), flags.forming, saves=flags.saves)
    request = replace(request, pool=read_pool(flags.pool), need=flags.need, method=flags.method)
    found = plan_with_backups(request)
    if flags.png is not None:
        try:
            from apps.ravnest.drawing import save
        except ModuleNotFoundError as error:
            raise UsageError(f"{error.name} is not installed; pip install 'pipelined[draw]'") from error
        save(found, flags.png)
    if flags.json:
        say(json.dumps(found.plain()))
    else:
        say("\n".join(plan_lines(found)))


def pool_request(
    trained: Plan | RavnestConfig,
    model: ModelConfig | DigitsConfig | None,
    forming: FormingFlags,
    *,
    saves: bool = False,
) -> PoolRequest:
    """What to plan for this training, without the pool.

    Args:
        model: None: it is not described by layers.
        saves: whether the nodes save.
    """
    layers = model and layer_sizes(model, trained.microbatch, trained.seq, trained.dtype)
    return PoolRequest(
        pool=(),
        layers=tuple(layers or ()),
        clusters=forming.clusters,
        balance=forming.balance,
        objective=forming.objective,
        rules=StageRules(
            trained.weights,
            ahead=forming.ahead,
            blocking=trained.average == "blocking",
            saves=saves,
            behind=STEPS_APART * -(-trained.batch // trained.microbatch),
            coded=ratio_of(trained.compress, trained.dtype),
        ),
        backups=forming.backups,
    )


def layer_sizes(
    model: ModelConfig | DigitsConfig, microbatch_size: int, sequence: int, dtype: str = "float32"
) -> Iterator[LayerSize]:
    """Each layer of a model for one microbatch.

    Args:
        dtype: a key of `BYTES`; the digits' sizes are those of float32.
    """
    if isinstance(model, DigitsConfig):
        return model.layer_sizes(microbatch_size)
    return _gpt2_sizes(model, microbatch_size, sequence, dtype)


def _gpt2_sizes(model: ModelConfig, microbatch_size: int, sequence: int, dtype: str) -> Iterator[LayerSize]:
    """The embedding, the blocks, and the final norm with the head.

    Each layer counts its output: so stages of several blocks hold less, up to 6 %, and with bfloat16 up to 10 %. With
    bfloat16 the graph of each microbatch keeps its own copies of the matrices, in 2 bytes a number.
    """
    (number, product) = BYTES[dtype]
    tokens = microbatch_size * sequence
    width = model.d_model
    stream = number * tokens * width
    ids = TOKEN_BYTES * tokens
    norm = number * tokens * NORM_NUMBERS
    taken = product * tokens * width
    mask = tokens * width if model.dropout else 0
    embedding = stream + ids + TOKEN_BYTES * sequence + mask
    head = stream + taken + norm + number * tokens * model.vocab + ids
    block = STREAM_WIDTHS * stream + PRODUCT_WIDTHS * taken + 2 * norm + 2 * mask
    block += _attention_bytes(model, microbatch_size, sequence, product)
    kept = [embedding, *[block] * model.layers, head]
    inputs = [ids, *[stream] * (model.layers + 1)]
    for layer, (shapes, cost) in enumerate(zip(layer_shapes(model), layer_costs(model, sequence), strict=True)):
        sizes = shapes.values()
        cast = product * sum(prod(shape) for shape in sizes if len(shape) > 1) if layer and product < number else 0
        numbers = sum(map(prod, sizes))
        work = 3 * tokens * cost
        yield LayerSize(numbers, kept[layer] + cast, inputs[layer], work, number, waits=layer > 0)


def _attention_bytes(model: ModelConfig, microbatch_size: int, sequence: int, product: int) -> int:
    """What an attention keeps beside its result: a sum a token and head, or all weights where they are dropped.

    It keeps each dropped weight before and after the dropout, and a mask of a byte.
    """
    if not model.dropout:
        return max(product, NUMBER_BYTES) * microbatch_size * sequence * model.heads
    return (2 * product + 1) * microbatch_size * model.heads * sequence**2 + sequence**2


def plan_lines(plan: RavnestPlan) -> Iterator[str]:
    """The plan in lines for people."""
    yield f"clusters: {len(plan.clusters)}, by {plan.objective} ({plan.method}), spread {plan.spread_s:.3g} s"
    sent = plan.round_bytes()
    for number, cluster in enumerate(plan.clusters):
        yield ", ".join(filter(None, [f"cluster {number}: transfer {cluster.transfer_s:.3g} s", cluster.pace_text]))
        if not cluster.stages:
            yield "  " + ", ".join(node.name for node in cluster.nodes)
        for stage in cluster.stages:
            layers = f"layers {stage.first}-{stage.end - 1}"
            held = f"{_mib(stage.bytes)} of {_mib(stage.node.ram)}, {stage.alive} alive"
            held += f", backup {stage.backup.name}" if stage.backup else ""
            yield f"  {stage.node.name}: {layers}, {held}, {_mib(sent[stage.node.name])} a round"
    if plan.rings:
        yield f"rings: {len(plan.rings)}"
    if plan.waiting:
        small = "too small for any layer, or for a place to back up"
        yield f"waiting, {small}: {', '.join(node.name for node in plan.waiting)}"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
