"""GPT-2 over T ranks: the coroutine of its layers, and which piece of each parameter a rank holds.

Each of a block's multiplications has factors of its own; between them the residual stream is split over all ranks. The
parameters bear the names of the plain model, and are pieces of its tensors.

Shapes: B sequences, T tokens of a sequence, C width, H heads, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from apps.lm.models.gelu import gelu
from apps.lm.models.gpt2 import EMBEDDING, HEAD
from apps.lm.models.gpt2_presets import ModelConfig
from pipelined.errors import UsageError
from pipelined.sharding import Mesh, Shards
from pipelined.sharding.operators.attention import attend
from pipelined.sharding.operators.matmul import LEAD, SplitMatmul, multiply
from pipelined.sharding.operators.stream import drop, layer_norm, residual
from pipelined.sharding.operators.verbs import Reader, Value
from pipelined.sharding.operators.vocabulary import cross_entropy, embed, ids_of, logits, table
from pipelined.training.keyed_random import KeyedRandom

Factors = tuple[int, int, int]
"""Ranks that split a multiplication's rows, columns and contraction."""

Pieces = Mapping[str, torch.Tensor]
"""A rank's pieces of the parameters, by the plain model's names."""

OPERATORS = ("c_attn", "attn.c_proj", "c_fc", "mlp.c_proj", "wte")
"""What has factors: a block's four multiplications, alike in all blocks, and the matrix of embedding and head."""


@dataclass(frozen=True)
class ShardedGPT2:
    """A GPT-2 whose tensors are split over T ranks.

    Args:
        config: its sizes.
        factors: of each of `OPERATORS`; the product of each is T.
    Raises:
        UsageError: an operator's factors are missing or unknown, the products differ, or there are more column
            shards than heads.
    """

    config: ModelConfig
    factors: Mapping[str, Factors]

    def __post_init__(self) -> None:
        if set(self.factors) != set(OPERATORS):
            given = ", ".join(sorted(self.factors)) or "none"
            raise UsageError(f"factors of other operators (given: {given}); name {', '.join(OPERATORS)}")
        sizes = {name: operator.mesh.size for name, operator in self.operators.items()}
        if len(set(sizes.values())) > 1:
            raise UsageError(f"factors with different products ({sizes}); each product is the number of ranks")
        for name in ("c_attn", "attn.c_proj"):
            _, columns, contraction = self.factors[name]
            if columns * contraction > self.config.heads:
                fact = f"shards: {columns * contraction}, heads: {self.config.heads}"
                raise UsageError(f"more column shards than heads ({name}, {fact}); split the rows further")

    @cached_property
    def operators(self) -> dict[str, SplitMatmul]:
        """The multiplications, by name."""
        c, h, v = self.config.d_model, self.config.heads, self.config.vocab
        heads = (h, c // h)
        sizes = {
            "c_attn": ((c,), (3, *heads), 1),
            "attn.c_proj": (heads, (c,), 0),
            "c_fc": ((c,), (4 * c,), 0),
            "mlp.c_proj": ((4 * c,), (c,), 0),
            "wte": ((c,), (v,), 0),
        }
        return {name: SplitMatmul(self.factors[name], *sizes[name]) for name in OPERATORS}

    @cached_property
    def mesh(self) -> Mesh:
        """The mesh of the residual stream: rows as those of c_attn."""
        rows, columns, contraction = self.factors["c_attn"]
        return Mesh(f"rows={rows} columns={columns * contraction}")

    def stream(self, lead: tuple[int, ...]) -> Shards:
        """How the residual stream (B, T, C) lies; lead: (B, T)."""
        return Shards(self.mesh, (*lead, self.config.d_model), f"S0:rows S{LEAD}:columns")

    def parameters(self) -> dict[str, Shards]:
        """How each parameter lies, by its plain name; some have more dimensions than the plain tensor of that name."""
        c = self.config.d_model
        token = Shards(self.mesh, (c,), "S0:columns")
        found = {EMBEDDING: table(self.operators["wte"])}
        found["transformer.wpe.weight"] = Shards(self.mesh, (self.config.positions, c), "S1:columns")
        for block in range(self.config.layers):
            at = f"transformer.h.{block}"
            for name in ("ln_1", "ln_2"):
                found |= {f"{at}.{name}.weight": token, f"{at}.{name}.bias": token}
            for name, path in _PATHS.items():
                operator = self.operators[name]
                found |= {f"{at}.{path}.weight": operator.weight, f"{at}.{path}.bias": operator.bias}
        found |= {"transformer.ln_f.weight": token, "transformer.ln_f.bias": token}
        return found if self.config.tied else found | {HEAD: table(self.operators["wte"])}

    def local(self, name: str, whole: torch.Tensor, rank: int) -> torch.Tensor:
        """A rank's piece of a parameter of the plain model."""
        shards = self.parameters()[name]
        piece: torch.Tensor = shards.local(whole.reshape(shards.lengths), rank)
        return piece

    async def loss(
        self, run: Reader, ids: Value, targets: Value, pieces: Pieces, random: KeyedRandom | None = None
    ) -> Value:
        """The mean cross-entropy of a microbatch.

        Args:
            ids, targets: (B, T), as `ids`.
            random: of the microbatch's dropout; None: nothing is dropped.
        Returns: a sum over the axis `rows` of the head's mesh; of its gradient every rank has the whole.
        """
        x = await self.embedding(run, ids, pieces, random)
        for block in range(self.config.layers):
            x = await self.block(run, block, x, pieces, random)
        weight, bias = (pieces[f"transformer.ln_f.{each}"] for each in ("weight", "bias"))
        x = await layer_norm(run, x, weight, bias)
        head = self.operators["wte"]
        x = await logits(run, head, x, pieces[EMBEDDING if self.config.tied else HEAD])
        return await cross_entropy(run, x, targets)

    def ids(self, lead: tuple[int, ...]) -> Shards:
        """How ids and targets (B, T) lie; lead: (B, T)."""
        return ids_of(self.operators["wte"], lead)

    async def embedding(self, run: Reader, ids: Value, pieces: Pieces, random: KeyedRandom | None) -> Value:
        """The residual stream's beginning, (B, T, C)."""
        x = await embed(run, self.operators["wte"], ids, pieces[EMBEDDING])
        x = await run.move(x, self.stream(ids.shards.lengths))
        tokens = ids.shards.lengths[1]
        positions = pieces["transformer.wpe.weight"]
        x = await run.compute("positions", lambda x, rows: x + rows[:tokens], x, positions, result=x.shards)
        return await self._drop(run, x, random, "embedding")

    async def block(
        self, run: Reader, number: int, x: Value, pieces: Pieces, random: KeyedRandom | None = None
    ) -> Value:
        """One block; x is (B, T, C), as `stream`."""
        at, place = f"transformer.h.{number}", f"h.{number}"

        def of(name: str) -> tuple[torch.Tensor, torch.Tensor]:
            return pieces[f"{at}.{name}.weight"], pieces[f"{at}.{name}.bias"]

        key = random.key(f"{place}.attn.weights") if random else None
        y = await layer_norm(run, x, *of("ln_1"))
        y = await multiply(run, self.operators["c_attn"], y, *of("attn.c_attn"))
        y = await attend(run, y, self.config.dropout, key)
        y = await multiply(run, self.operators["attn.c_proj"], y, *of("attn.c_proj"))
        x = await residual(run, x, await self._drop(run, y, random, f"{place}.attn.residual"))
        y = await layer_norm(run, x, *of("ln_2"))
        y = await multiply(run, self.operators["c_fc"], y, *of("mlp.c_fc"))
        y = await run.compute("gelu", gelu, y, result=y.shards)
        y = await multiply(run, self.operators["mlp.c_proj"], y, *of("mlp.c_proj"))
        return await residual(run, x, await self._drop(run, y, random, f"{place}.mlp.residual"))

    async def _drop(self, run: Reader, x: Value, random: KeyedRandom | None, place: str) -> Value:
        return x if random is None else await drop(run, x, self.config.dropout, random.key(place))


_PATHS = {"c_attn": "attn.c_attn", "attn.c_proj": "attn.c_proj", "c_fc": "mlp.c_fc", "mlp.c_proj": "mlp.c_proj"}
"""Where the multiplications stand in a block of the plain model."""
