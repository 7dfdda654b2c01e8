"""How far something is, is told seldom, and only where it is news."""

from pipelined.process.reporting.progress import EVERY_S, MOMENT_S, Progress


def test_a_word_comes_after_a_moment_and_then_every_few_seconds_if_there_is_news():
    said, clock = [], [0.0]
    progress = Progress(lambda: clock[0], said.append)
    for passed, text in [(0, "a"), (MOMENT_S, "b"), (0.9 * EVERY_S, "c"), (0.2 * EVERY_S, "d"), (2 * EVERY_S, "d")]:
        clock[0] += passed
        progress.show(text)
    assert said == ["b", "d"]
