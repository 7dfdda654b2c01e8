"""The counts of invalid input and of rejections, by reason."""

from collections import Counter

from transports.rpc.reasons import REASONS, count_reason


def test_reasons_beyond_the_limit_are_counted_as_others():
    counts = Counter()
    for number in [*range(REASONS + 5), 0]:
        count_reason(counts, f"reason {number}")
    assert len(counts) == REASONS + 1
    assert (counts["others"], counts["reason 0"], counts[f"reason {REASONS - 1}"]) == (5, 2, 1)
