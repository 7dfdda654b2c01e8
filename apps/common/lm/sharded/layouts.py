"""The layouts of a GPT-2's multiplications over T ranks: named ones, and factors by operator. No torch."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt, prod
from operator import index
from pathlib import Path
from typing import Any

from pipelined.errors import UsageError
from pipelined.planner.plan_file import FORMAT, read_plan
from pipelined.sharding import factors
from pipelined.sharding.factors import Factors

OPERATORS = ("c_attn", "attn.c_proj", "c_fc", "mlp.c_proj", "wte")
"""What has factors: a block's four multiplications, alike in all blocks, and the matrix of embedding and head."""
LAYOUT = "megatron"
"""The layout of a team that is measured, or generates text, where none was given."""
STATES = ("zero1", "zero2", "zero3")
"""What the ranks that multiply by one weight split of it: the optimizer's state, its gradient, too, and the weight."""
NAMED = {**dict(zip(STATES, STATES, strict=True)), "summa": "zero3"}
"""The state of all weights in the layouts that go by a name; none in the others."""


def resolve_layout(layout: str) -> str:
    """Read a layout: a name, or factors by operator. If it is the path of a file, read the file's."""
    return _read_layout_file(Path(layout)) if Path(layout).is_file() else layout


def factors_of(layout: str, ranks: int) -> dict[str, Factors]:
    """The factors of every operator; see `pipelined.sharding.factors.factors_of`.

    Args:
        layout: also OPERATOR=ROWS.COLUMNS.CONTRACTION+STATE, or the path of a file with a strategy that `python -m
            pipelined shard --out` wrote; wte may be left out of factors by operator, and is then split by the
            vocabulary alone.
        ranks: T.
    """
    columns, contraction = Factors(1, ranks, 1), Factors(1, 1, ranks)
    megatron = dict(zip(OPERATORS, (columns, contraction, columns, contraction, columns), strict=True))
    by_rows = dict.fromkeys(OPERATORS, Factors(ranks, 1, 1))
    named_layouts = {"data": by_rows, "zero1": by_rows, "zero2": by_rows, "zero3": by_rows}
    named_layouts |= {"summa": dict.fromkeys(OPERATORS, grid(ranks)), "megatron": megatron}
    text = resolve_layout(layout)
    states_of(text)  # refuses unknown ones
    words = [word.partition("+")[0] for word in text.split(",")]
    return factors.factors_of(",".join(words), ranks, named_layouts, {"wte": columns})


def states_of(layout: str) -> dict[str, str]:
    """What ranks that multiply by one weight split of it, by operator: one of `STATES`, or none.

    Args:
        layout: as of `factors_of`; +STATE alone is that of all operators, where their factors are open.
    Raises:
        UsageError: a state is unknown, or comes after the name of a layout.
    """
    text = resolve_layout(layout)
    if "=" not in text:
        if "+" in text.removeprefix("+"):
            remedy = f"write OPERATOR=ROWS.COLUMNS.CONTRACTION+STATE for {', '.join(OPERATORS)}"
            raise UsageError(f"no state after the name of a layout (layout: {layout!r}); {remedy}")
        return dict.fromkeys(OPERATORS, NAMED.get(text.removeprefix("+"), "none"))
    state_of = dict.fromkeys(OPERATORS, "none")
    for word in text.split(","):
        name, _, factors_and_state = word.partition("=")
        state = factors_and_state.partition("+")[2] or "none"
        if state not in (*STATES, "none"):
            raise UsageError(f"no state {state!r} (layout: {layout!r}); write {', '.join(STATES)}, or leave it out")
        state_of[name] = state
    return state_of


def divides(layout: str) -> bool:
    """Whether ranks that multiply by one weight divide its update."""
    return any(state != "none" for state in states_of(layout).values())


def layout_text(split: Mapping[str, Factors], states: Mapping[str, str]) -> str:
    """Factors and states as `--layout` has them."""
    words = []
    for name in OPERATORS:
        state = "" if states[name] == "none" else f"+{states[name]}"
        words.append(f"{name}={split[name]}{state}")
    return ",".join(words)


def grid(ranks: int) -> Factors:
    """The factors of SUMMA: rows and columns of ranks, as equal as they can be, the columns not fewer."""
    rows = max(number for number in range(1, isqrt(ranks) + 1) if ranks % number == 0)
    return Factors(rows, ranks // rows, 1)


def require_fitting(split: Mapping[str, Factors], heads: int, rows: int | None = None) -> None:
    """Refuse factors that leave ranks without a head, or without a sequence of a microbatch.

    Args:
        rows: sequences in a microbatch; None: of any number.
    Raises:
        UsageError: names the operator, both numbers, and the remedy.
    """
    for name in ("c_attn", "attn.c_proj"):
        _, columns, contraction = split[name]
        if columns * contraction > heads:
            fact = f"shards: {columns * contraction}, heads: {heads}"
            raise UsageError(f"more column shards than heads ({name}, {fact}); split the rows further")
    for name, (shards, _, _) in split.items():
        if rows is not None and shards > rows:
            fact = f"more row shards than sequences in a microbatch ({name}, shards: {shards}, sequences: {rows})"
            raise UsageError(f"{fact}; split the rows into {rows} at most, or use larger microbatches")


@dataclass(frozen=True)
class StrategyRow:
    """How a strategy's file splits one operator, at each level of the machine, nodes first."""

    operator: str
    levels: tuple[Factors, ...]
    state: str
    gathers_anew: bool

    @classmethod
    def parse(cls, row: Mapping[str, Any]) -> "StrategyRow":
        """A row of JSON. Raises ValueError, LookupError, TypeError: it is no such row."""
        levels = row["factors"] if isinstance(row["factors"][0], list) else [row["factors"]]
        if len(levels) > 2:
            raise ValueError(f"{len(levels)} levels, of at most 2")
        factors = tuple(Factors(*map(index, level)) for level in levels)
        return cls(str(row["op"]), factors, str(row["state"]), bool(row.get("anew")))

    @property
    def text(self) -> str:
        """Factors over all levels together, and the state, as `--layout` has them."""
        factors = Factors(*map(prod, zip(*self.levels, strict=True)))
        return f"{factors}" if self.state == "none" else f"{factors}+{self.state}"


def _read_layout_file(path: Path) -> str:
    """Factors and states by operator of a strategy or a plan. Raises UsageError: neither is there, or it cannot run."""
    try:
        document = json.loads(path.read_text())
        is_plan = isinstance(document, dict) and document.get("format") == FORMAT
        rows = [] if is_plan else [StrategyRow.parse(row) for row in document["strategy"]]
    except (ValueError, LookupError, TypeError, OSError) as error:
        fact = f"{path} is no layout ({type(error).__name__}: {error})"
        raise UsageError(f"{fact}; write one with `python -m pipelined shard --out`") from error
    return _read_plan_layout(path) if is_plan else _strategy_layout(path, rows)


def _strategy_layout(path: Path, rows: Sequence[StrategyRow]) -> str:
    """Factors and states by operator, over all levels of the machine together; a head is split as the embedding is.

    Levels that lie on ranks otherwise than they were priced are refused: an order of levels of its own would permute
    the blocks that ranks hold, which no operator does. Raises UsageError.
    """
    text_by_operator = dict[str, str]()
    for row in rows:
        if row.gathers_anew and row.state != "zero3":
            fact = f"{path}: the input of {row.operator} is gathered anew (state: {row.state}), which is trained"
            raise UsageError(f"{fact} with zero3 alone; take --space paper, or --layout zero3")
        _require_nested(path, row.operator, row.levels)
        name = "wte" if row.operator == "lm_head" else row.operator
        if text_by_operator.setdefault(name, row.text) != row.text:
            raise UsageError(f"{path} splits {name} in two ways; embedding and head have one layout")
    return ",".join(f"{name}={text}" for name, text in text_by_operator.items())


def _read_plan_layout(path: Path) -> str:
    """The layout of a plan file.

    Raises:
        UsageError: it is damaged, or its workers are single ranks.
    """
    if not (split := read_plan(path).plan.layout):
        raise UsageError(f"{path} is a plan without teams, and has no layout; give it to --plan, or another --layout")
    return split


def _require_nested(path: Path, name: str, levels: Sequence[Sequence[int]]) -> None:
    """Refuse levels that a mesh of rows, contraction and columns does not have.

    In this order the last varies fastest over ranks, and a node has consecutive ranks. So where an axis is cut inside a
    node, those behind it are not cut over nodes: 2.1.1/1.2.1 has its rows over nodes, and 1.2.1/2.1.1 is no such mesh.

    Args:
        levels: rows, columns, contraction of each level, nodes first.
    Raises:
        UsageError: training would have other neighbours on a node than were priced.
    """
    if len(levels) < 2:
        return
    nodes, inside = ([level[place] for place in (0, 2, 1)] for level in levels)
    if any(cut > 1 and max(nodes[place + 1 :], default=1) > 1 for place, cut in enumerate(inside)):
        text = "/".join(".".join(map(str, level)) for level in levels)
        fact = f"{path}: {name}={text} is not trained: nodes cut rows first, then the contraction, then columns"
        example = f"{name}={prod(nodes)}.1.1/1.{prod(inside)}.1"
        raise UsageError(f"{fact}; give `shard --layout` factors in that order, such as {example}")
