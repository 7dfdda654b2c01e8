"""A strategy priced: what each operator moves in each phase of a step, how long all take, and what a rank holds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipelined.sharding.search.build_problem import SearchProblem
from pipelined.sharding.search.matmul import Split
from pipelined.sharding.search.options import Option
from pipelined.sharding.search.pricing import PHASES
from pipelined.sharding.search.problem import Strategy


class Row(NamedTuple):
    """An operator, with all layers like it.

    Args:
        elements: by phase, what the busiest rank sends in a step.
        seconds: of its moves in a step.
        memory_bytes: bytes that each rank holds for it.
    """

    name: str
    option: Option
    elements: Mapping[str, float]
    seconds: float
    memory_bytes: float

    def to_dict(self) -> dict[str, Any]:
        factors = [list(level) for level in self.option.split]
        fields = {"op": self.name, "factors": factors if len(factors) > 1 else factors[0], "state": self.option.state}
        return fields | {phase: _round_count(self.elements[phase]) for phase in PHASES}


@dataclass(frozen=True)
class Priced:
    """A strategy with its price.

    Args:
        rows: of each operator, in the order of the chain.
        seconds: of a step.
        memory_bytes: bytes of each rank.
    """

    rows: list[Row]
    seconds: float
    memory_bytes: float

    @property
    def elements(self) -> dict[str, float]:
        """What the busiest rank sends in a step, by phase."""
        return {phase: sum(row.elements[phase] for row in self.rows) for phase in PHASES}

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "strategy": [row.to_dict() for row in self.rows],
            "elements": {phase: _round_count(number) for phase, number in self.elements.items()},
            "seconds": self.seconds,
            "memory": round(self.memory_bytes),
        }


def price(built: SearchProblem, strategy: Strategy) -> Priced:
    """The price of a strategy, operator by operator."""
    priced_chain = built.priced_chain
    options = built.options(strategy)
    elements = [dict.fromkeys(PHASES, 0.0) for _ in options]
    seconds = [0.0] * len(options)
    for index, term in built.terms(strategy):
        elements[index][term.phase] += term.elements
        seconds[index] += term.seconds
    columns = zip(priced_chain.chain.operators, options, elements, seconds, strict=True)
    rows = [
        Row(op.name, option, op_elements, op_seconds, priced_chain.memory_bytes(op, option))
        for op, option, op_elements, op_seconds in columns
    ]
    return Priced(rows, sum(seconds), built.problem.memory_bytes(strategy))


def _round_count(number: float) -> int | float:
    """The count as an integer where it is one but for rounding."""
    return round(number) if abs(number - round(number)) <= 1e-9 * max(1.0, abs(number)) else number


def format_split(split: Split) -> str:
    """A split as text: 4.8.2, or 2.4.1/2.2.2 over nodes and ranks of a node."""
    return "/".join(map(str, split))
