"""An error ends every program with one exit code, whatever it runs."""

import pytest

from apps.common.exit_code import exit_code
from pipelined.errors import JobFailed, Refused, UsageError


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (UsageError("no such preset"), 2, "no such preset"),
        (MemoryError("full"), 2, "the command failed: MemoryError('full'); free memory"),
        (JobFailed("printed by rank 0", 1), 1, None),
        (Refused("printed by rank 0", 2), 2, None),
        (KeyboardInterrupt(), 130, None),
        (ZeroDivisionError("a bug"), None, None),
    ],
)
def test_an_error_has_one_exit_code_and_is_printed_only_if_the_user_can_correct_it(error, code, printed):
    said = []

    def refuse(refusal):
        said.append(str(refusal))
        return 2

    assert exit_code(error, refuse, "free memory") == code
    assert said == ([] if printed is None else [printed])


def test_a_reader_that_closes_the_output_ends_a_program_in_order(monkeypatch):
    silenced = []
    monkeypatch.setattr("apps.common.exit_code.silence_stdout", lambda: silenced.append(True))
    assert exit_code(BrokenPipeError(), lambda error: 2) == 0 and silenced
