"""A priced timeline as the spans that traces and pictures are made of.

The rule: an instruction becomes the span that training would trace for it, so that both can be laid side by side.
"""

from collections.abc import Iterable
from pathlib import Path

from pipelined.programs.instructions import OP_NAMES
from pipelined.programs.pricing.timeline import Timed, Timeline
from pipelined.traces.file import Span, write
from pipelined.traces.tracer import Tracer


def spans_of(timeline: Timeline, first_rank: int = 0, members: int = 1) -> list[Span]:
    """Every computation of a timeline, rank by rank, as step 0.

    Args:
        first_rank: the rank of worker 0.
        members: ranks of a worker.
    """
    by_rank = [instructions for instructions in timeline.computations for _ in range(members)]
    return [_span(rank, timed) for rank, instructions in enumerate(by_rank, first_rank) for timed in instructions]


def write_spans(path: Path, ranks: int, spans: Iterable[Span]) -> None:
    """Write the spans of ranks 0 to `ranks` - 1 for Perfetto."""
    tracers = [Tracer(float) for _ in range(ranks)]
    for span in spans:
        coordinates = (span.step, span.stage, span.microbatch, span.pipe)
        tracers[span.rank].record(span.category, span.name, span.start, span.end, coordinates)
    write(path, [tracer.events() for tracer in tracers])


def _span(rank: int, timed: Timed) -> Span:
    """The span of an instruction; both halves of a backward are of category backward."""
    i = timed.instruction
    name = OP_NAMES[i.op]
    category = name.partition("_")[0]
    coordinates = {"stage": i.stage, "microbatch": i.microbatch, "pipe": i.pipe}
    return Span(rank, category, name, timed.start, timed.end, step=0, **coordinates)
