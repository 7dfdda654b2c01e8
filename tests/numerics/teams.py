"""Workers of several ranks: their arrangements, and whole tensors from what the ranks hold."""

import asyncio
from dataclasses import dataclass, replace

import pytest

from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.common.lm.sharded.gpt2 import ShardedGPT2
from apps.common.lm.sharded.layouts import factors_of, states_of
from tests.numerics.arrangements import SPLIT
from tests.numerics.plain import SEQUENCE, Case, Outcome
from tests.numerics.trained import opened
from tests.unit.pipelined.sharding.operators.ranks import together
from transports import new_event_loop
from transports.local import world

MIXED = {
    2: "c_attn=1.1.2,attn.c_proj=2.1.1,c_fc=1.2.1,mlp.c_proj=1.1.2",
    3: "c_attn=1.3.1,attn.c_proj=1.1.3,c_fc=1.1.3,mlp.c_proj=1.3.1,wte=1.1.3",
    4: "c_attn=2.2.1,attn.c_proj=2.1.2,c_fc=1.2.2,mlp.c_proj=1.1.4,wte=2.2.1",
    8: "c_attn=2.2.2,attn.c_proj=2.1.4,c_fc=1.4.2,mlp.c_proj=1.1.8,wte=2.4.1",
}
"""For each number of ranks a layout in which every operator has its own factors."""

EACH = "c_attn=2.2.1+zero3,attn.c_proj=2.1.2+zero2,c_fc=1.2.2,mlp.c_proj=1.1.4+zero1,wte=2.2.1+zero3"
"""For 4 ranks a layout in which every operator has its own state."""


@dataclass(frozen=True)
class TeamCase(Case):
    """An arrangement of teams, of a model with 8 heads."""

    tensor: int = 2
    layout: str = "megatron"
    layers: int = 2
    again: bool = False

    @property
    def plan(self):
        return replace(super().plan, tensor=self.tensor)

    @property
    def model(self):
        """The whole model, also for one rank a worker."""
        sizes = ModelConfig(self.layers, 16, 8, 13, SEQUENCE, self.dropout, self.tied)
        if "=" in self.layout:
            return ShardedGPT2(
                sizes,
                factors_of(self.layout, self.tensor),
                states_of(self.layout),
                recompute_attention=self.again,
            )
        layout = self.layout.replace("mixed", MIXED.get(self.tensor, ""))
        layout, _, state = layout.partition("+")
        return ShardedGPT2(sizes, factors_of(layout, self.tensor), state or "none", recompute_attention=self.again)

    def __str__(self):
        extras = [self.scale] * (self.scale != "direct") + ["recompute"] * self.recompute + ["again"] * self.again
        extras += ["dropout"] * (self.dropout > 0) + ["untied"] * (not self.tied)
        sizes = f"D{self.depth}-W{self.width}-N{self.microbatches}-T{self.tensor}"
        return "-".join([self.schedule, sizes, self.layout, *extras])


ALWAYS = [
    TeamCase("one_f_one_b", 1, 1, 2, layers=1, dropout=0.2, again=True),
    TeamCase("gpipe", 1, 2, 1, layers=1, layout="data"),
    TeamCase("gpipe", 1, 1, 1, layers=1, tensor=8, layout="mixed"),
    TeamCase("zb_h1", 2, 1, 2, layers=1, layout="mixed", dropout=0.2, again=True),
    TeamCase("one_f_one_b", 2, 2, 1, layers=1, layout="data", recompute=True, dropout=0.2),
    TeamCase("chimera", 2, 1, 4, layers=1, layout="data", scale="forward-doubling", tied=False),
    TeamCase("zb_v", 4, 1, 2, tensor=3, layout="mixed", recompute=True),
    TeamCase("zb_h1", 2, 1, 2, layers=1, layout="data+zero3", dropout=0.2),
    TeamCase("gpipe", 1, 2, 1, layers=1, layout="mixed+zero3"),
    TeamCase("chimera_w", 2, 1, 4, layers=1, layout="mixed+zero3"),
    TeamCase("one_f_one_b", 2, 1, 2, layers=1, tensor=4, layout="summa+zero3"),
    TeamCase("zb_h1", 2, 1, 2, layers=1, layout="data+zero2", recompute=True, dropout=0.2),
    TeamCase("chimera", 2, 2, 2, layers=1, layout="mixed+zero2"),
    TeamCase("one_f_one_b", 1, 1, 2, layers=1, tensor=4, layout=EACH, recompute=True, dropout=0.2),
    TeamCase("gpipe", 2, 1, 1, layers=1, tensor=4, layout="mixed", tied=False, dropout=0.2),
]
"""What every run of the tests trains."""


def grid():
    """Every number of ranks, depth and width with every schedule that has a flush; the rest goes round."""
    shapes = [
        (name, depth, {})
        for name in ("gpipe", "one_f_one_b", "chimera", *SPLIT)
        for depth in (1, 2, 4)
        if depth > 1 or name in ("gpipe", "one_f_one_b", "zb_h1")
    ]
    shapes += [("gems", 2, {}), ("gems", 3, {}), ("interleaved", 4, {"chunks": 2}), ("chimera_w", 4, {"pipes": 4})]
    shapes += [("chimera", 2, {"scale": scale}) for scale in ("forward-doubling", "backward-halving")]
    cases = [
        TeamCase(name, depth, width, 4, tensor=tensor, **knobs)
        for tensor in MIXED
        for width in (1, 2)
        for name, depth, knobs in shapes
        if tensor * width * depth <= 32  # 64 ranks in one process take a minute a case, and are no other code
    ]
    return [_varied(number, case) for number, case in enumerate(cases)]


def _varied(number, case):
    layouts = ("megatron", "mixed", "mixed+zero2", "summa", "mixed+zero3", "zero1")
    layouts += ("data", "zero3") * (case.tensor == 2)
    case = replace(case, layout=layouts[number // 3 % len(layouts)], tied=number % 5 != 4)
    return replace(case, dropout=0.2 * (number % 3 > 0), recompute=number % 3 == 1)


def parametrised():
    """`ALWAYS`, and with --full every case of the grid."""
    rest = [pytest.param(case, marks=pytest.mark.full, id=f"grid-{case}") for case in grid()]
    return [*(pytest.param(case, id=str(case)) for case in ALWAYS), *rest]


def on_every_rank(case, work, ends=()):
    """What a coroutine of each rank's transport returns; ends: of a local world, if not a plain one."""

    async def everyone():
        return await asyncio.gather(*map(work, ends or world(case.plan.world_size)))

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(everyone())


def whole_of(case, held, name):
    """A tensor from the first team that has it.

    Args:
        held: what each rank holds, by name.
    """
    shards = case.model.parameters()[name]
    first = next(rank for rank, tensors in enumerate(held) if name in tensors)
    pieces = [held[rank][name].view(shards.shape(member)) for member, rank in enumerate(case.plan.team(first))]
    return together(shards, pieces)


async def team_trained(case, transport, all_reduce="auto", steps=5):
    """Train one rank, with gradient sums by an algorithm; what it holds at the end."""
    async with opened(transport, case.job(all_reduce=all_reduce)) as trainer:
        reports = [await trainer.step(step) for step in range(steps)]
    parameters = {name: p.detach() for name, p in trainer.local.parameters.items()}
    return Outcome([r.loss for r in reports], [r.grad_norm for r in reports], parameters)


def assert_pieces(case, expected, got, rank):
    """Losses agree to 1e-12, and every piece that the rank holds to 1e-10 of its tensor's largest element.

    The keys' part of `c_attn.bias` has no gradient but rounding, which AdamW scales up: it agrees to 1e-9.
    """
    assert got.losses == pytest.approx(expected.losses, rel=1e-12)
    assert got.norms == pytest.approx(expected.norms, rel=1e-11)
    for name, held in got.parameters.items():
        shards, whole = case.model.parameters()[name], expected.parameters[name]
        piece = shards.local(whole.view(shards.lengths), case.plan.member(rank))
        error = float((held.reshape(piece.shape) - piece).abs().max()) if held.numel() else 0.0
        assert error <= (1e-9 if "c_attn.bias" in name else 1e-10) * float(whole.abs().max()), f"{name}: {error:.2e}"
