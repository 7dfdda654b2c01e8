"""A schedule of the user's own with an endless loop is refused with its numbers and place: nothing hangs."""

import sys
import threading
from io import StringIO
from types import SimpleNamespace

import pytest

from apps.gpt2.__main__ import main as gpt2
from pipelined.__main__ import main
from pipelined.programs.recording import record
from pipelined.schedules import ScheduleError, Shape, find
from pipelined.schedules.gpipe import stage_map

GPIPES = "from pipelined.schedules.gpipe import stage_map\nasync def schedule(worker):\n"
ENDLESS = {
    "does nothing": GPIPES + "    while True: pass",
    "asks for what has come": GPIPES + "    while worker.here('F', 0): pass",
    "awaits nothing": GPIPES + "    while await worker.wait(('F', 0)):\n        pass",
    "catches its errors": GPIPES + "    for n in range(2): await worker.forward(0)\n    while 1:\n        n += 1",
    "catches every exception": GPIPES
    + "    n = 0\n    while 1:\n        try: n = (n + 1) * (n + 1) % 7 + n - n\n        except Exception: pass",
    "in its stage map": "def stage_map(shape):\n    while True: pass\nasync def schedule(worker): pass",
    "in a function": "n = 0\ndef spin():\n    global n\n    n += 1\n" + GPIPES + "    while True: spin()",
}


@pytest.mark.parametrize("code", ENDLESS.values(), ids=ENDLESS)
def test_the_command_ends_with_code_2_and_says_how_much_ran_and_where(tmp_path, capsys, code):
    path = tmp_path / "endless.py"
    path.write_text(code)
    assert main(["schedule", str(path), "--depth", "2", "--microbatches", "2"]) == 2
    said = capsys.readouterr().err
    assert "does not stop (bytecodes run: 1" in said and f"of {path}); end the loop there" in said
    assert "Traceback" not in said and sys.gettrace() is None


def test_an_import_that_takes_long_is_reported_once_with_its_line(tmp_path, monkeypatch):
    """The file's loop ends when it reads that on stderr."""
    path = tmp_path / "slow.py"
    path.write_text(
        "import sys\nwhile 'still' not in sys.stderr.getvalue(): pass\nfrom pipelined.schedules.gpipe import *"
    )
    monkeypatch.setattr("pipelined.schedules.user.bounded.SLOW_S", 0.01)
    monkeypatch.setattr(sys, "stderr", StringIO())
    find(str(path))
    (said,) = sys.stderr.getvalue().splitlines()
    assert said.startswith(f"still importing the schedule {str(path)!r} (for: 0.01 s, at line 2 of {path}); ")
    assert "Ctrl-C" in said


def test_a_short_import_is_not_reported(tmp_path, capsys):
    path = tmp_path / "quick.py"
    path.write_text("from pipelined.schedules.gpipe import *")
    before = threading.active_count()
    find(str(path))
    assert threading.active_count() <= before and not capsys.readouterr().err


@pytest.mark.parametrize("program", [lambda path: main(["schedule", path]), lambda path: gpt2(["--schedule", path])])
def test_an_interrupt_ends_an_endless_import_with_code_130(tmp_path, capsys, program):
    path = tmp_path / "endless.py"
    path.write_text("import signal\nsignal.raise_signal(signal.SIGINT)\nwhile True: pass")
    assert program(str(path)) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_loop_that_is_endless_only_where_messages_come_late_is_refused():
    async def schedule(worker):
        for _ in range(2):
            while not worker.here("F", 0):
                pass
            await worker.forward(0)
        for _ in range(2):
            await worker.backward(0)

    with pytest.raises(
        ScheduleError, match=r"the schedule does not stop \(bytecodes run: \d+, at line \d+ of .*test_bounded"
    ):
        record(SimpleNamespace(__name__="test", stage_map=stage_map, schedule=schedule), Shape(2, 2))


def test_a_schedule_of_ones_own_has_bytecodes_to_spare():
    """It may plan its order first, and run some lines of its own for each instruction."""

    async def schedule(worker):
        order = sorted(range(500), key=lambda microbatch: -microbatch)
        for microbatch in order:
            assert sum(microbatch > other for other in range(50)) <= 50
            await worker.forward(0, microbatch=microbatch)
        for microbatch in order:
            await worker.backward(0, microbatch=microbatch)

    (one,) = record(SimpleNamespace(__name__="test", stage_map=stage_map, schedule=schedule), Shape(1, 500)).workers
    assert len(one) == 1000


def test_schedules_of_this_project_are_not_traced(monkeypatch):
    monkeypatch.setattr(sys, "settrace", lambda trace: pytest.fail("it was traced"))
    assert record(find("chimera"), Shape(4, 4)).workers
