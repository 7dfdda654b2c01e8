"""GPT-2 over T ranks: the coroutine of its layers, and which piece of each parameter a rank holds.

Each of a block's multiplications has factors of its own; between them the residual stream is split over all ranks. The
parameters bear the names of the plain model, and are pieces of its tensors.

Shapes: B sequences, T tokens of a sequence, C width, H heads, V vocabulary.
"""

from collections.abc import Mapping
from functools import cached_property, partial

import torch
from torch import nn

from apps.common.lm.models.gelu import gelu
from apps.common.lm.models.gpt2 import EMBEDDING, GPT2, HEAD, initialise
from apps.common.lm.models.gpt2_presets import ModelConfig, block_multiplications, multiplications
from apps.common.lm.sharded.attention import attend
from apps.common.lm.sharded.layouts import OPERATORS, Factors, require_fitting
from pipelined.errors import UsageError
from pipelined.random.keyed_random import KeyedRandom
from pipelined.sharding import Mesh, Shards
from pipelined.sharding.operators.matmul import LEAD, SplitMatmul, multiply, sharded_weight
from pipelined.sharding.operators.stream import drop, layer_norm, residual
from pipelined.sharding.operators.verbs import Operand, ShardedWeight, Value, Verbs
from pipelined.sharding.operators.vocabulary import cross_entropy, embed, ids_shards
from pipelined.sharding.shards import merge_dimensions, shape_of, take
from pipelined.training.job.module_tensors import register_tensor
from pipelined.training.stages.key_values import tokens_before

Pieces = Mapping[str, Operand]
"""A rank's pieces of the parameters, by the plain model's names."""


class ShardedGPT2(GPT2):
    """A GPT-2 whose tensors are split over T ranks; what it has of `GPT2` is the whole.

    Args:
        config: its sizes.
        factors: of each of `OPERATORS`; the product of each is T.
        states: of the weight of each operator, or of all. `zero2`, `zero3`: the ranks that hold one piece keep parts of
            it, and gather it once a step, or for each use, in the forward and in the backward. Others: whole pieces.
        recompute_attention: whether the core of each attention keeps only its inputs, and is computed again in the
            backward.
    Raises:
        UsageError: an operator's factors are missing or unknown, the products differ, or there are more column
            shards than heads.
    """

    def __init__(
        self,
        config: ModelConfig,
        factors: Mapping[str, Factors],
        states: str | Mapping[str, str] = "none",
        *,
        recompute_attention: bool = False,
    ):
        super().__init__(config)
        self.factors, self._recompute_attention = factors, recompute_attention
        self.states = dict.fromkeys(OPERATORS, states) if isinstance(states, str) else states
        if set(self.factors) != set(OPERATORS):
            names = ", ".join(sorted(self.factors)) or "none"
            raise UsageError(f"factors of other operators (given: {names}); name {', '.join(OPERATORS)}")
        sizes = {name: operator.mesh.size for name, operator in self.operators.items()}
        if len(set(sizes.values())) > 1:
            raise UsageError(f"factors with different products ({sizes}); each product is the number of ranks")
        require_fitting(factors, config.heads)

    @cached_property
    def operators(self) -> dict[str, SplitMatmul]:
        """The multiplications, by name."""
        return {
            name: SplitMatmul(self.factors[name], product.inputs, product.outputs, product.split)
            for name, product in multiplications(self.config).items()
        }

    @cached_property
    def mesh(self) -> Mesh:
        """The mesh of the residual stream: rows as those of c_attn."""
        rows, columns, contraction = self.factors["c_attn"]
        return Mesh(f"rows={rows} columns={columns * contraction}")

    def stream(self, lead: tuple[int, ...]) -> Shards:
        """How the residual stream (B, T, C) lies; lead: (B, T)."""
        return Shards(self.mesh, (*lead, self.config.d_model), f"S0:rows S{LEAD}:columns")

    def stream_shards(self, lengths: tuple[int, ...]) -> Shards:
        """How the stream lies between two stages: as everywhere."""
        return self.stream(lengths[:LEAD])

    def parameters(self) -> dict[str, Shards]:
        """How each parameter lies, by its plain name; some have more dimensions than the plain tensor of that name."""
        pieces = self._pieces
        return pieces | {name: sharded_weight(pieces[name]) for name in self._sharded}

    @property
    def shards_weights(self) -> bool:
        """Whether ranks that hold one piece of a weight keep parts of it."""
        return bool(self._sharded)

    @cached_property
    def _sharded(self) -> dict[str, str]:
        """The weights that are sharded as by ZeRO, by name, with their state."""
        blocks = range(self.config.layers)
        matmuls = block_multiplications(self.config).items()
        weights = {name: [f"transformer.h.{n}.{matmul.module}.weight" for n in blocks] for name, matmul in matmuls}
        weights["wte"] = [EMBEDDING, *([] if self.config.tied else [HEAD])]
        in_parts = {operator: state for operator, state in self.states.items() if state in ("zero2", "zero3")}
        return {name: state for operator, state in in_parts.items() for name in weights[operator]}

    @cached_property
    def _pieces(self) -> dict[str, Shards]:
        """What each rank computes with of each parameter."""
        c = self.config.d_model
        token = Shards(self.mesh, (c,), "S0:columns")
        pieces = {EMBEDDING: self.operators["wte"].table}
        pieces["transformer.wpe.weight"] = Shards(self.mesh, (self.config.positions, c), "S1:columns")
        for block in range(self.config.layers):
            prefix = f"transformer.h.{block}"
            for name in ("ln_1", "ln_2"):
                pieces |= {f"{prefix}.{name}.weight": token, f"{prefix}.{name}.bias": token}
            for name, matmul in block_multiplications(self.config).items():
                operator = self.operators[name]
                module = f"{prefix}.{matmul.module}"
                pieces |= {f"{module}.weight": operator.weight, f"{module}.bias": operator.bias}
        pieces |= {"transformer.ln_f.weight": token, "transformer.ln_f.bias": token}
        return pieces if self.config.tied else pieces | {HEAD: self.operators["wte"].table}

    def local(self, name: str, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        """A rank's piece of a parameter of the plain model."""
        shards = self.parameters()[name]
        piece: torch.Tensor = shards.local(tensor.reshape(shards.lengths), rank)
        return piece

    def member_model(self, member: int) -> GPT2:
        """The model of which `build` gives one rank's pieces."""
        return MemberGPT2(self, member)

    async def score(self, verbs: Verbs, output: Value, targets: Value) -> Value:
        """The mean cross-entropy of a microbatch.

        Args:
            output: logits (B, T, V), as `run_layers` gives them.
            targets: (B, T), as `input_shards`.
        Returns: a sum over the axis `rows` of the head's mesh; of its gradient every rank has the whole.
        """
        return await cross_entropy(verbs, output, targets)

    async def run_layers(
        self,
        verbs: Verbs,
        layers: range,
        x: Value,
        pieces: Mapping[str, torch.Tensor],
        random: KeyedRandom | None = None,
    ) -> Value:
        """A range of layers, of a microbatch.

        Args:
            x: ids (B, T), as `input_shards`, where the range begins with the first layer; else (B, T, C), as `stream`.
            random: of the microbatch's dropout; None: nothing is dropped.
        Returns: (B, T, C), as `stream`; after the last layer the logits (B, T, V), split over all ranks.
        """
        layouts = self.parameters()
        operands: dict[str, Operand] = {**pieces}
        for name, state in self._sharded.items():
            if name in pieces:
                operands[name] = ShardedWeight.of(pieces[name], layouts[name], name, regather=state == "zero3")
        for layer in layers:
            if layer == 0:
                x = await self.embedding(verbs, x, operands, random)
            elif layer == self.layers - 1:
                x = await self.head(verbs, x, operands)
            else:
                x = await self.block(verbs, layer - 1, x, operands, random)
        return x

    async def head(self, verbs: Verbs, x: Value, pieces: Pieces) -> Value:
        """The last norm and the logits, (B, T, V), split over all ranks; x is (B, T, C), as `stream`."""
        x = await layer_norm(verbs, x, *(pieces[f"transformer.ln_f.{name}"] for name in ("weight", "bias")))
        matrix = pieces[EMBEDDING if self.config.tied else HEAD]
        return await multiply(verbs, self.operators["wte"], x, matrix, transposed=True)

    def input_shards(self, lead: tuple[int, ...]) -> Shards:
        """How ids and targets (B, T) lie; lead: (B, T)."""
        return ids_shards(self.operators["wte"], lead)

    async def embedding(self, verbs: Verbs, ids: Value, pieces: Pieces, random: KeyedRandom | None) -> Value:
        """The residual stream's beginning, (B, T, C)."""
        x = await embed(verbs, self.operators["wte"], ids, pieces[EMBEDDING])
        x = await verbs.move(x, self.stream(ids.shards.lengths))
        tokens = ids.shards.lengths[1]
        positions = pieces["transformer.wpe.weight"]
        x = await verbs.compute("positions", partial(_add_positions, tokens), x, positions, result=x.shards)
        return await self._drop(verbs, x, random, "embedding")

    async def block(
        self, verbs: Verbs, number: int, x: Value, pieces: Pieces, random: KeyedRandom | None = None
    ) -> Value:
        """One block; x is (B, T, C), as `stream`."""
        prefix, place = f"transformer.h.{number}", f"h.{number}"

        def parameters_of(name: str) -> tuple[Operand, Operand]:
            return pieces[f"{prefix}.{name}.weight"], pieces[f"{prefix}.{name}.bias"]

        key = random.key(f"{place}.attn.weights") if random else None
        y = await layer_norm(verbs, x, *parameters_of("ln_1"))
        y = await multiply(verbs, self.operators["c_attn"], y, *parameters_of("attn.c_attn"))
        y = await attend(verbs, y, self.config.dropout, key, recompute=self._recompute_attention)
        y = await multiply(verbs, self.operators["attn.c_proj"], y, *parameters_of("attn.c_proj"))
        x = await residual(verbs, x, await self._drop(verbs, y, random, f"{place}.attn.residual"))
        y = await layer_norm(verbs, x, *parameters_of("ln_2"))
        y = await multiply(verbs, self.operators["c_fc"], y, *parameters_of("mlp.c_fc"))
        y = await verbs.compute("gelu", gelu, y, result=y.shards)
        y = await multiply(verbs, self.operators["mlp.c_proj"], y, *parameters_of("mlp.c_proj"))
        return await residual(verbs, x, await self._drop(verbs, y, random, f"{place}.mlp.residual"))

    async def _drop(self, verbs: Verbs, x: Value, random: KeyedRandom | None, place: str) -> Value:
        return x if random is None else await drop(verbs, x, self.config.dropout, random.key(place))


def _add_positions(tokens: int, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return x + rows[tokens_before() : tokens_before() + tokens]  # (B, T, C)


class MemberGPT2(GPT2):
    """One rank's pieces of a sharded GPT-2.

    Args:
        model: the whole model.
        member: the rank's number in its team.
    """

    def __init__(self, model: ShardedGPT2, member: int):
        super().__init__(model.config)
        self._sharded_model, self._member = model, member

    def build(self, layers: range, dtype: torch.dtype, device: torch.device | str, seed: int | None) -> nn.Module:
        """Build the pieces of a range of layers, each a block cut from the initial values of its whole.

        Cost: no more memory than the pieces, and the largest whole parameter once, which every rank draws.
        """
        layouts = self._sharded_model.parameters()
        part = nn.Module()
        is_abstract = torch.device(device).type == "meta"
        with torch.device("meta"):
            parameters = dict(self._part(layers).named_parameters())
        for name, parameter in parameters.items():
            blocks = merge_dimensions(layouts[name].pieces(self._member), layouts[name].lengths, parameter.shape)
            piece = torch.empty(shape_of(blocks), dtype=dtype, device=device)
            if seed is not None and not is_abstract:
                initial = nn.Parameter(torch.empty(parameter.shape, dtype=dtype))
                with torch.no_grad():
                    initialise(initial, name, seed, self.config)
                    piece.copy_(take(initial, blocks))
            register_tensor(part, name, nn.Parameter(piece))
        return part
