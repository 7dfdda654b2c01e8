"""The schedule that docs/schedules.md writes is the one it shows, and does what is said of it."""

import asyncio
import re
import shlex

import pytest

from pipelined.__main__ import main
from pipelined.programs.costs import Costs
from pipelined.programs.pricing.price import price
from pipelined.programs.recording import record
from pipelined.schedules import Shape, find, schedule_names
from tests.docs.test_documents import blocks
from tests.launching import ROOT, launched, mpirun
from tests.numerics.plain import Case, assert_same, pipelined, plain
from transports import new_event_loop
from transports.local import world

DOCUMENT = ROOT / "docs" / "schedules.md"
EXAMPLE = ROOT / "docs" / "examples" / "gems.py"
SMALL = "--layers 2 --d-model 16 --seq 16 --sample 0 --data LICENSE".split()
TABLES = [ROOT / "docs" / "examples" / name for name in ("late.csv", "segment.csv")]


def shown(language):
    """The document's blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)


def block_with(text):
    """The document's shell block in which this is."""
    (found,) = [block for block in blocks(DOCUMENT) if text in block]
    return found


@pytest.fixture
def in_root(monkeypatch, one_thread):
    """Paths in the document are from the root."""
    monkeypatch.chdir(ROOT)


def test_the_file_shown_is_the_example():
    assert shown("python") == [EXAMPLE.read_text()]
    assert shown("csv") == [table.read_text() for table in TABLES]


def test_every_schedule_is_in_the_table():
    assert set(schedule_names()) == set(re.findall(r"^\| `(\w+)` \|", DOCUMENT.read_text(), re.MULTILINE))


def test_the_grid_shown_is_what_the_command_prints(in_root, capsys):
    assert main(shlex.split(blocks(DOCUMENT)[0])[3:]) == 0
    assert capsys.readouterr().out == shown("text")[0]


def test_the_fault_shown_is_what_the_checker_says(tmp_path, capsys):
    right, wrong = "worker.backward(microbatch % 2)", "worker.backward((microbatch + 1) % 2)"
    assert wrong in DOCUMENT.read_text()
    (tmp_path / "wrong.py").write_text(EXAMPLE.read_text().replace(right, wrong))
    assert main(["schedule", str(tmp_path / "wrong.py"), "--depth", "4", "--microbatches", "2"]) == 2
    assert capsys.readouterr().err == shown("text")[1]


def test_every_drawn_file_exists(in_root, tmp_path):
    for command in block_with("gems.svg").splitlines():
        *words, file = shlex.split(command)[3:]
        assert main([*words, str(tmp_path / file)]) == 0
        assert (tmp_path / file).stat().st_size > 1000


def test_the_refusal_without_mailboxes_is_what_the_command_prints(capsys):
    assert main(shlex.split(block_with("--mailbox"))[3:]) == 2
    assert capsys.readouterr().err == shown("text")[2]


@pytest.mark.in_turns(4)
def test_what_was_measured_is_laid_beside_what_was_expected(in_root, tmp_path, capsys):
    text = block_with("--against")
    for name in ("expected.json", "measured.json", "both.png"):
        text = text.replace(name, str(tmp_path / name))
    expect, measure, compare = map(shlex.split, text.splitlines())
    assert main(expect[3:]) == 0
    command, env = mpirun("mpich", 4, *measure[4:], *SMALL)
    done = launched(command, timeout=60, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert main(compare[3:]) == 0
    assert (tmp_path / "both.png").stat().st_size > 1000 and "largest differences" in capsys.readouterr().out


def test_tables_are_shown_and_written(in_root, tmp_path, capsys):
    show, write, _ = block_with("--csv").splitlines()
    assert main(shlex.split(show)[3:]) == 0
    assert main([*shlex.split(write)[3:-1], str(tmp_path / "written.csv")]) == 0
    assert main(["schedule", str(tmp_path / "written.csv")]) == 0
    assert main(shlex.split(block_with("segment.csv").splitlines()[0])[3:]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.stem)
def test_a_table_trains_under_mpirun(in_root, table):
    *_, job = block_with(f"schedule docs/examples/{table.name}").splitlines()
    command, env = mpirun("mpich", 2, *shlex.split(job)[4:], "--steps", 2, *SMALL)
    done = launched(command, timeout=60, env=env)
    assert done.returncode == 0 and "validation loss" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(("depth", "microbatches"), [(4, 1), (4, 4), (3, 5), (8, 8)])
def test_it_takes_the_time_it_says(depth, microbatches):
    timeline = price(record(find(str(EXAMPLE)), Shape(depth, microbatches)), Costs(forward=1, backward=2))
    assert timeline.makespan == depth + (microbatches - 1) * (2 * depth + 1) + 2 * depth
    assert set(timeline.peak_activations) == {1}


def assert_trains_as_one_process(case):
    """Train a case on ranks in this process, and hold every one of them to the plain loop."""

    async def everyone():
        return await asyncio.gather(*(pipelined(case, transport) for transport in world(case.plan.world_size)))

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        outcomes = runner.run(everyone())
    expected = plain(case)
    for outcome in outcomes:
        assert_same(expected, outcome)


@pytest.mark.parametrize(
    "case", [Case(str(EXAMPLE), 4, 1, 3), Case(str(EXAMPLE), 2, 2, 4), Case(str(TABLES[0]), 2, 2, 4)]
)
def test_it_trains_to_the_numbers_of_one_process(case, in_root):
    assert_trains_as_one_process(case)


@pytest.mark.parametrize(("name", "chunks"), [("chimera_w", 1), ("zb_v", 2)])
def test_a_table_with_pipes_halves_or_folds_trains_to_the_numbers_of_one_process(tmp_path, in_root, name, chunks):
    table = str(tmp_path / "written.csv")
    assert main(["schedule", name, "--depth", "4", "--microbatches", "4", "--csv", table]) == 0
    assert_trains_as_one_process(Case(table, 4, 1, 4, chunks=chunks))
