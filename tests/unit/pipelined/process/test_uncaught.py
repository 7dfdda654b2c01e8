"""When a job has the place of `sys.excepthook`, and what it does there."""

import sys

import pytest

from pipelined.errors import AgreedError, JobFailed, Refused, UsageError
from pipelined.process.uncaught import UncaughtErrors
from tests.launching import launched


@pytest.fixture
def printed(monkeypatch):
    """What the hook of a program that has no job is called with."""
    errors = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: errors.append(error))
    return errors


def end(error):
    """Call the hook as the interpreter does; the exit code, or None if it raises none."""
    try:
        sys.excepthook(type(error), error, None)
    except SystemExit as ended:
        return ended.code


def test_an_import_leaves_the_hook_alone():
    code = "import sys; hook = sys.excepthook; import pipelined; pipelined.train; sys.exit(sys.excepthook is not hook)"
    assert launched([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_job_that_succeeds_restores_the_hook(printed):
    before = sys.excepthook
    with UncaughtErrors("pipelined.train", None) as job:
        assert sys.excepthook is job
    assert sys.excepthook is before


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UsageError("no"), 2, "pipelined.train: error: no\n"),
        (AgreedError("no"), 2, "pipelined.train: error: no\n"),
        (Refused("no", 2), 2, ""),
        (JobFailed("no", 1), 1, ""),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=lambda value: type(value).__name__,
)
def test_after_a_job_that_failed_its_error_ends_the_program(printed, capsys, error, code, message):
    with pytest.raises(type(error)), UncaughtErrors("pipelined.train", None):
        raise error
    assert end(error) == code
    assert capsys.readouterr().err == message and not printed


def test_other_errors_go_to_the_hook_that_was_there_before(printed):
    errors = [ValueError("mine"), JobFailed("the trainer is closed")]
    UncaughtErrors("pipelined.Trainer", None)
    assert [end(error) for error in errors] == [None, None]
    assert printed == errors


def test_jobs_that_fail_one_after_another_do_not_pile_up(printed):
    before = sys.excepthook
    for _ in range(3):
        UncaughtErrors("pipelined.train", None).close(UsageError("no"))
    assert sys.excepthook._earlier_hook is before
    with UncaughtErrors("pipelined.train", None):
        pass
    assert sys.excepthook is before


def test_two_open_jobs_may_end_in_any_order(printed):
    before = sys.excepthook
    first, second = UncaughtErrors("first", None), UncaughtErrors("second", None)
    first.close()
    assert sys.excepthook is second
    second.close()
    assert sys.excepthook is before


def test_an_open_trainer_ends_with_the_error_and_prints_it(printed, capsys, monkeypatch):
    ended = []
    monkeypatch.setattr("pipelined.process.uncaught.open_trainers", {ended.append})
    UncaughtErrors("pipelined.Trainer", None)
    assert end(error := UsageError("no")) == 2
    assert ended == [error] and not capsys.readouterr().err
