"""docs/command-line.md has every flag with its default and help, every command, variable and metrics key; no other."""

import json
import re
import sys

import pytest

from apps.common.flags.run_flags import RunFlags
from pipelined.__main__ import COMMANDS, main
from pipelined.process.launch import MPI, SLURM, TORCHRUN
from tests.docs.command_line import (
    FILE,
    KINDS,
    KNOBS,
    NAMES,
    RUN_GROUPS,
    SETS,
    TABLE,
    flags_of_class,
    flags_of_command,
    flags_of_knobs,
    marked,
    takes_knobs,
    written,
)
from tests.launching import launched

TEXT = FILE.read_text()
TINY = "--depth 2 --steps 2 --layers 1 --d-model 16 --seq 16 --sample 0 --eval-every 1 --data LICENSE".split()

ONE_AFTER_ANOTHER = """
import json, sys
from apps.gpt2 import __main__ as gpt2
sys.exit(max(gpt2.main(flags) for flags in json.loads(sys.argv[1])))
"""


def part(heading):
    """The text from a heading to the next of its level or above."""
    level = len(heading.partition(" ")[0])
    return re.search(rf"^{re.escape(heading)}$(.*?)(?=^#{{1,{level}}} |\Z)", TEXT, re.MULTILINE | re.DOTALL)[1]


def rows(text):
    """(first cell without its ticks, second cell) of every row of the tables in a text."""
    return [(name, cell.strip()) for name, cell in re.findall(r"^\| `([^|]+)` \|([^|]*)\|", text, re.MULTILINE)]


def told(name):
    """The rows that a reader finds for a program or command: its own, and those of the sets that it names."""
    block = next(found[0] for found in TABLE.finditer(TEXT) if found[1] == name)
    also = [
        anchor for line in block.splitlines() if line.startswith("Also ") for anchor in re.findall(r"\(#(.+?)\)", line)
    ]
    found = {}
    for each in (heading for anchor in also for heading in HEADINGS if heading.lower().replace(" ", "-") == anchor):
        found |= {flag: row for table in HEADINGS[each] for flag, row in told(table).items()}
    return found | {flag: line for line in block.splitlines() for flag in re.findall(r"^\| `(--[\w-]+)`", line)}


HEADINGS = {
    **{heading: [heading] for heading in SETS.values()},
    SETS[RunFlags]: [*RUN_GROUPS, KNOBS],
    "Settings of a schedule": [KNOBS],
}
"""The tables below a heading that a line of sets names."""


def test_every_table_is_as_the_flags_and_their_help_have_it():
    assert written(TEXT) == TEXT, "run `python -m tests.docs.command_line`"


def test_every_table_is_there_once():
    assert sorted(found[1] for found in TABLE.finditer(TEXT)) == sorted(NAMES)


def test_a_flag_is_shown_with_its_default_its_help_and_marks():
    """A default of 0 is shown, one that is missing is open; the sets stand above the table."""
    before, after = written("<!-- flags: pipelined simulate -->\n\nx\n").split("| flag | default | what |\n")
    assert before == "<!-- flags: pipelined simulate -->\nAlso [settings of a schedule](#settings-of-a-schedule).\n\n"
    assert "\n| `--node` | 0 | ranks per node; 0: all ranks on one node |\n" in after
    assert "| `--trace` | open | write a Perfetto trace, gzipped if the name ends in .gz |\n\nx\n" in after


@pytest.mark.parametrize("name", KINDS)
def test_a_reader_of_a_program_finds_each_of_its_flags_as_it_is_there(name):
    rows = flags_of_class(KINDS[name])
    shown = told(name)
    knobs = {*flags_of_knobs()} if issubclass(KINDS[name], RunFlags) else set()
    assert {*shown} == {*rows} | knobs
    for flag, (default, what) in rows.items():
        assert shown[flag].startswith(f"| `{flag}` | {default} | {marked(what)}")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_of_a_command_finds_each_of_its_flags(command):
    knobs = {*flags_of_knobs()} if takes_knobs(command) else set()
    assert {*told(f"pipelined {command}")} == {*flags_of_command(command)} | knobs


def test_every_variable_is_there():
    names = set(re.findall(r"`([A-Z_]+)`", part("## Environment")))
    launchers = {name for names in (*MPI, SLURM, TORCHRUN) for name in names}
    assert names == {*launchers, "PIPELINED_KEY", "PIPELINED_KEY_FILE", "PIPELINED_NODE"}


@pytest.mark.timeout(120)
def test_every_key_of_the_metrics_is_there(tmp_path):
    plan = str(tmp_path / "plan")
    planning = ["plan", "--costs", "flops=1e9", "--ranks", "2", "--out", plan, *TINY]
    assert main(planning) == 0
    arrangements = (
        ["--schedule", "docs/examples/gems.py", "--digest", "1", "--dtype", "float16"],
        ["--schedule", "pipedream"],
        ["--plan", plan],
    )
    lines = [[*TINY, *arrangement, "--metrics", str(tmp_path / "metrics")] for arrangement in arrangements]
    done = launched([sys.executable, "-c", ONE_AFTER_ANOTHER, json.dumps(lines)], timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (tmp_path / "metrics").read_text().splitlines()]
    assert {name for name, _ in rows(part("### Metrics"))} == {key for line in lines for key in line}
