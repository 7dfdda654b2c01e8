"""The command's ends: what happened in one line, and an exit code."""

import resource
import sys
from dataclasses import replace

import pytest

from apps.common.commands.local_processes import ChildFailed
from apps.swarm import __main__ as swarm
from pipelined.errors import UsageError
from pipelined.membership.directory import CutOff, JournalError
from pipelined.process.reporting.events import emit, warn
from pipelined.swarm.peer.device_watchdog import DeviceStalled
from tests.launching import launched
from tests.terminal import closed_over

AT = ["--coordinator", "tcp://127.0.0.1:1"]
CASES = [
    (CutOff("no answer"), 1),
    (JournalError("cannot write the journal"), 1),
    (DeviceStalled("the device is stuck"), 1),
    (ChildFailed("a trainer", -9), 1),
    (UsageError("no"), 2),
]


def replace_coordinator(monkeypatch, run):
    command = swarm.COMMANDS.commands["coordinator"]
    monkeypatch.setitem(swarm.COMMANDS.commands, "coordinator", replace(command, run=run))


@pytest.mark.parametrize("error, code", CASES)
def test_a_failure_that_is_known_ends_in_a_line_and_a_code(monkeypatch, capsys, error, code):
    async def fail(flags):
        raise error

    replace_coordinator(monkeypatch, fail)
    assert swarm.main(["coordinator"]) == code
    assert str(error) in capsys.readouterr().err


def test_a_refusal_of_a_child_is_printed_by_the_child_alone(monkeypatch, capsys):
    async def fail(flags):
        raise ChildFailed("a trainer", 2)

    replace_coordinator(monkeypatch, fail)
    assert (swarm.main(["coordinator"]), capsys.readouterr().err) == (2, "")


@pytest.mark.parametrize("kind", [UsageError, CutOff, ChildFailed, ZeroDivisionError])
def test_a_terminal_obeys_nothing_of_what_another_machine_wrote_into_an_error(monkeypatch, capsys, kind):
    words = "b: \x1b]0;owned\x07\x9b2J\r\u202egone"

    async def fail(flags):
        raise kind(words, 1) if kind is ChildFailed else kind(words)

    replace_coordinator(monkeypatch, fail)
    assert swarm.main(["coordinator"]) in (1, 2)
    told = capsys.readouterr().err
    assert "b: \ufffd]0;owned\ufffd\ufffd2J\ufffd\ufffdgone" in told
    assert not set(told) & set("\x1b\x07\x9b\r\u202e")


@pytest.mark.parametrize(
    "words, fact",
    [
        (["serve", *AT, "--save-every", "9"], "--save-every 9 means nothing without --checkpoint; add it, or leave"),
        (["local", "--save-every", "9"], "--save-every 9 means nothing without --checkpoint"),
        (["local", "--resume"], "--resume means nothing without --checkpoint; add it, or leave --resume out"),
        (["local", "--prompt", "To"], "--prompt 'To' means nothing without --sample"),
        (["train", *AT, "--prompt", "To"], "--prompt 'To' means nothing without --sample"),
        (["export", *AT, "--to", "model", "--seed", "3"], "--seed 3 means nothing without --sample"),
    ],
)
def test_a_flag_that_would_do_nothing_is_refused(words, fact, capsys):
    assert swarm.main(words) == 2
    assert fact in capsys.readouterr().err


@pytest.mark.parametrize("command", ["serve", "train"])
@pytest.mark.parametrize("name, fact", [("n" * 257, "at most 256 bytes (it is 257)"), ("a\nb", "cannot be printed")])
def test_a_name_that_no_directory_or_no_log_takes_is_refused_at_once(command, name, fact, capsys):
    assert swarm.main([command, *AT, "--name", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--name" in line and fact in line


def run(monkeypatch, work, *flags):
    async def worked(flags):
        return work()

    replace_coordinator(monkeypatch, worked)
    return swarm.main(["coordinator", *flags])


@pytest.mark.parametrize("level, shown", [("info", 2), ("warning", 1), ("error", 0)])
def test_the_log_shows_events_from_its_level_up(monkeypatch, capsys, level, shown):
    def work():
        emit("leads", trainer="t0")
        warn("peer evicted", peer="a")

    assert run(monkeypatch, work, "--log", level) == 0
    assert len(capsys.readouterr().err.splitlines()) == shown


def test_a_crash_is_reported_with_its_trace_and_the_last_events(monkeypatch, capsys):
    def work():
        emit("leads", trainer="t0")
        raise ZeroDivisionError("by zero")

    assert run(monkeypatch, work) == 1
    told = capsys.readouterr().err
    assert "ZeroDivisionError: by zero" in told and "leads: trainer=t0" in told.partition("last events:")[2]


def test_a_full_disk_ends_a_coordinator_with_the_journal_and_the_remedy(tmp_path, capsys):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        code = swarm.main(["coordinator", "--journal", str(tmp_path / "jöurnal 1")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 1
    assert f"cannot write the journal {tmp_path / 'jöurnal 1'} (File too large); free disk space and restart" in line


@pytest.mark.timeout(60)
def test_a_coordinator_imports_no_torch():
    program = """
import sys
from apps.swarm import __main__ as swarm
from pipelined.commands import directory
async def imported(*arguments):
    print(*sys.modules)
directory.serve = imported
sys.exit(swarm.main(["coordinator"]))
"""
    done = launched([sys.executable, "-c", program], timeout=50)
    assert done.returncode == 0 and not {"torch", "mpi4py"} & {*done.stdout.split()}, done.stderr


def test_a_coordinator_ends_in_order_when_its_terminal_is_closed():
    assert closed_over(sys.executable, "-m", "apps.swarm", "coordinator") == 0


def test_the_help_of_an_open_flag_shows_the_type_of_its_value_alone(capsys):
    with pytest.raises(SystemExit):
        swarm.main(["serve", "--help"])
    shown = capsys.readouterr().out
    assert "--stage STAGE" in shown and "{None}" not in shown
