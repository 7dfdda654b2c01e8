"""A measured step beside the expected one, pass by pass: the passes that took longer, and the waits before passes.

A delay is reported at the instruction that caused it, not at instructions that it delays on its rank. An instruction
that is late because its message was late counts as waiting.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipelined.errors import UsageError
from pipelined.traces.drawing.steps import is_pass
from pipelined.traces.file import Span

PassKey = tuple[int, str, int, int, int]
"""(rank, name, stage, microbatch, pipe)."""


@dataclass(frozen=True)
class Pass:
    """One forward or backward (half) in both timelines.

    Args:
        measured, expected: its span in each timeline.
        measured_idle, expected_idle: seconds for which its rank was idle before it.
    """

    measured: Span
    expected: Span
    measured_idle: float
    expected_idle: float

    @property
    def took(self) -> float:
        """Seconds by which it took longer than expected."""
        return (self.measured.end - self.measured.start) - (self.expected.end - self.expected.start)

    @property
    def waited(self) -> float:
        """Seconds by which its rank waited longer than expected before it."""
        return self.measured_idle - self.expected_idle


def scale_expected(measured: Sequence[Span], expected: Sequence[Span]) -> list[Span]:
    """The expected spans, scaled so that all forwards and backwards together take as long as measured."""
    ratio = _pass_seconds(measured) / _pass_seconds(expected)
    return [replace(span, start=span.start * ratio, end=span.end * ratio) for span in expected]


def side_by_side(measured: Sequence[Span], expected: Sequence[Span]) -> list[Pass]:
    """Every pass of a step in both timelines, by rank, then measured start.

    Args:
        expected: the expected spans of the same ranks and the same program.
    Raises:
        UsageError: the two do not have the same passes.
    """
    measured_passes = dict(_with_idle(measured))
    expected_passes = dict(_with_idle(expected))
    for key in {**measured_passes, **expected_passes}:
        if key not in measured_passes or key not in expected_passes:
            timeline = "expected" if key in measured_passes else "measured"
            fact = f"the two timelines are not of one program (first not {timeline}: {_in_words(key)} on rank {key[0]}"
            numbers = f"passes: {len(measured_passes)} measured, {len(expected_passes)} expected"
            raise UsageError(f"{fact}; {numbers}); give both one schedule and shape")
    pairs = ((*measured_passes[key], *expected_passes[key]) for key in measured_passes)
    return [Pass(span, expected_span, idle, expected_idle) for span, idle, expected_span, expected_idle in pairs]


def last_end(spans: Sequence[Span]) -> float:
    """Seconds at which the last pass ended."""
    return max(span.end for span in spans if is_pass(span))


def repeat_for_groups(expected: Sequence[Span], rows: int) -> list[Span]:
    """The expected spans of one pipeline group, repeated for every group."""
    workers = 1 + max(span.rank for span in expected)
    return [replace(span, rank=span.rank + first_rank) for first_rank in range(0, rows, workers) for span in expected]


def as_rows(passes: Sequence[Pass]) -> list[dict[str, Any]]:
    """Every pass as JSON: its rank, name, stage, microbatch and pipe, and the seconds beyond those expected."""
    names = ("rank", "name", "stage", "microbatch", "pipe")
    return [
        {**dict(zip(names, _key_of(pass_.measured), strict=True)), "took": pass_.took, "waited": pass_.waited}
        for pass_ in passes
    ]


def report(passes: Sequence[Pass], count: int = 10) -> str:
    """The mean times by kind of pass, and the largest differences with the pass of each."""
    lines = [f"{'mean, ms':18}{'measured':>10}{'expected':>10}"]
    for name in sorted({pass_.measured.name for pass_ in passes}):
        same_passes = [pass_ for pass_ in passes if pass_.measured.name == name]
        times = [(_seconds(pass_.measured), _seconds(pass_.expected)) for pass_ in same_passes]
        lines.append(_line(name.replace("_", " "), times))
    lines.append(_line("wait before", [(pass_.measured_idle, pass_.expected_idle) for pass_ in passes]))
    largest = [*_largest_differences(passes, count)]
    return "\n".join([*lines, "", "largest differences" if largest else "no differences", *largest])


def _largest_differences(passes: Sequence[Pass], count: int) -> Iterator[str]:
    differences = [(pass_.took, "took", "in", pass_) for pass_ in passes]
    differences += [(pass_.waited, "waited", "before", pass_) for pass_ in passes]
    largest = sorted(differences, key=lambda difference: -abs(difference[0]))[:count]
    for seconds, verb, where, pass_ in largest:
        if abs(seconds) > 1e-9:  # less is rounding
            how = f"{verb} {abs(seconds) * 1e3:.4g} ms {'longer' if seconds > 0 else 'less'}"
            yield f"  rank {pass_.measured.rank:<4} {how:24} {where} {_in_words(_key_of(pass_.measured))}"


def _line(name: str, times: Sequence[tuple[float, float]]) -> str:
    return f"  {name:16}" + "".join(f"{1e3 * sum(column) / len(column):10.3f}" for column in zip(*times, strict=True))


def _with_idle(spans: Sequence[Span]) -> Iterator[tuple[PassKey, tuple[Span, float]]]:
    """Every pass, and the seconds for which its rank was idle before it."""
    idle_since: dict[int, float] = {}
    for span in sorted(filter(is_pass, spans), key=lambda span: (span.rank, span.start)):
        yield _key_of(span), (span, max(0.0, span.start - idle_since.get(span.rank, 0.0)))
        idle_since[span.rank] = span.end


def _key_of(span: Span) -> PassKey:
    return span.rank, span.name, span.stage, span.microbatch, span.pipe


def _in_words(key: PassKey) -> str:
    _, name, stage, microbatch, pipe = key
    return f"{name.replace('_', ' ')} of microbatch {microbatch} in stage {stage} (pipe {pipe})"


def _seconds(span: Span) -> float:
    return span.end - span.start


def _pass_seconds(spans: Sequence[Span]) -> float:
    return sum(map(_seconds, filter(is_pass, spans)))
