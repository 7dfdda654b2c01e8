"""A benchmark's flags are read alike on all ranks, and mistakes are printed by the first alone."""

from dataclasses import dataclass

import pytest

from benchmarks.harness.flags import flags
from pipelined.errors import UsageError


@dataclass(frozen=True)
class Options:
    """Weigh eggs."""

    eggs: int = 6

    def __post_init__(self):
        if self.eggs < 1:
            raise UsageError(f"no eggs to weigh (--eggs {self.eggs}); lay one")


def printed(monkeypatch, capsys, rank, *words):
    """Exit code, and what was printed on this rank of two that a launcher started."""
    for name, value in {"PMI_RANK": rank, "PMI_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr("sys.argv", ["eggs", *words])
    monkeypatch.setattr("pipelined.process.refusal.wait_for_refusals", lambda rank, ranks, patience: {*range(ranks)})
    with pytest.raises(SystemExit) as end:
        flags(Options, "eggs")
    said = capsys.readouterr()
    return end.value.code, said.out + said.err


@pytest.mark.parametrize("words", [("--eggs", "many"), ("--nests", "2"), ("--eggs", "0")])
def test_wrong_flags_end_all_ranks_and_the_first_tells(monkeypatch, capsys, words):
    code, said = printed(monkeypatch, capsys, 0, *words)
    assert code == 2 and "--" in said
    assert printed(monkeypatch, capsys, 1, *words) == (2, "")


def test_help_is_printed_once(monkeypatch, capsys):
    code, said = printed(monkeypatch, capsys, 0, "--help")
    assert code == 0 and "Weigh eggs." in said and "python -m benchmarks.eggs" in said
    assert printed(monkeypatch, capsys, 1, "--help") == (0, "")
