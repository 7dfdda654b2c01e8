"""The input of the search: a chain of multiplications, the streams between them, and what else its ranks hold."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pipelined.errors import UsageError
from pipelined.sharding.search.matmul import Matmul

EXAMPLE = "1048576:8192-24576/8192-8192"


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One multiplication of a chain.

    Args:
        name: as `--layout` names it.
        matmul: its sizes in a step.
        output_columns: columns of its output that the next operator reads; after attention fewer than it has.
        input_stream, output_stream: names of the streams that it reads and leaves; the same name is the same layout.
            None: there is no other operator on that side, or ids or losses, which cost next to nothing.
        attention: attention follows it.
        sequences, heads: those of a microbatch in the attention, or images and channels; None: any number.
        repeated: layers that are alike, and are split alike.
        normed: a norm stands between the stream that it reads and its input.
        biased: a bias is added to its output.
        positions: numbers of a table that is added to an embedding's output, where there is one.
    """

    name: str
    matmul: Matmul
    output_columns: int
    input_stream: str | None
    output_stream: str | None
    attention: bool = False
    sequences: int | None = None
    heads: int | None = None
    repeated: int = 1
    normed: bool = False
    biased: bool = False
    positions: int = 0


@dataclass(frozen=True)
class Chain:
    """Operators in order.

    Args:
        operators: each reads the stream that the one before it left.
        closed: the last feeds the first, as a block does the next.
        by_rows: the first operator's input arrives split by tokens over all ranks.
        keeps: activations count as memory, beside state.
        split_bytes, whole_bytes: further bytes that all ranks share evenly, and that each holds.
        itemsize: bytes of a number.
    """

    operators: Sequence[Operator]
    closed: bool = False
    by_rows: bool = False
    keeps: bool = False
    split_bytes: float = 0.0
    whole_bytes: float = 0.0
    itemsize: int = 4

    @property
    def has_residual(self) -> bool:
        """Whether a stream comes back: what is added to it must have its layout."""
        names = [name for op in self.operators for name in (op.input_stream, op.output_stream) if name]
        return len(names) - len(set(names)) > len(self.operators) - 1 + self.closed


def chain_of(tokens: int, widths: Sequence[tuple[int, int]], *, closed: bool = False, by_rows: bool = False) -> Chain:
    """A chain of multiplications alone.

    Args:
        tokens: of a step.
        widths: columns of each tensor of the chain, and those of them that the next operator reads.
        closed, by_rows: see `Chain`.
    """
    last = len(widths) - 1
    names = [f"stream.{index}" for index in range(last)] + ["stream.0" if closed else f"stream.{last}"]
    operators = [
        Operator(
            name=f"matmul{index}",
            matmul=Matmul(tokens, widths[index][1], widths[index + 1][0]),
            output_columns=widths[index + 1][1],
            input_stream=names[index],
            output_stream=names[index + 1],
            attention=widths[index + 1][0] != widths[index + 1][1],
        )
        for index in range(last)
    ]
    return Chain(operators, closed, by_rows)


def read_chain(text: str, closed: bool = False) -> Chain:
    """A chain from `TOKENS:WIDTH-WIDTH/ONWARD-…`, as in `EXAMPLE`.

    Raises:
        UsageError: the text is not a chain, or `closed` is set and the last width differs from the first.
    """
    if not re.fullmatch(r"\d+:\d+(-\d+(/\d+)?)+", text):
        fact = f"--chain {text} is no chain"
        raise UsageError(f"{fact}; write the tokens of a step and the widths, as in {EXAMPLE}")
    tokens, _, widths_text = text.partition(":")
    pairs = [tuple(map(int, width.split("/"))) for width in widths_text.split("-")]
    widths = [(pair[0], pair[-1]) for pair in pairs]
    if not int(tokens) or not all(output_columns for _, output_columns in widths):
        raise UsageError(f"--chain {text} has a size of 0; give positive tokens and widths, as in {EXAMPLE}")
    for width, output_columns in widths:
        if output_columns > width:
            fact = f"--chain {text}: more columns go on than there are ({output_columns} of {width})"
            raise UsageError(f"{fact}; write the columns first, as in {EXAMPLE}")
    if closed and widths[0][1] != widths[-1][1]:
        fact = f"--closed: the last does not fit the first (last: {widths[-1][1]} columns, first: {widths[0][1]})"
        raise UsageError(f"{fact}; end the chain as it begins, or leave --closed out")
    return chain_of(int(tokens), widths, closed=closed)
