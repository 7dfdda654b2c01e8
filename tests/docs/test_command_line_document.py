"""docs/command-line.md has every flag with its default and help, every command, variable and metrics key; no other."""

import json
import re
import sys

import pytest

from apps.common.flags.groups import GROUPS, SCHEDULE
from apps.common.rows.config import RowFlags
from pipelined.__main__ import COMMANDS, main
from pipelined.process.launch import MPI, SLURM, TORCHRUN
from pipelined.schedules import knobs_of
from tests.docs.command_line import FILE, RAVNEST, ROWS, flags_of_class, flags_of_command, flags_of_training, written
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


def names(text):
    """The flags of the tables in a text."""
    return sorted(name for name, _ in rows(text) if name.startswith("--"))


def test_every_row_of_a_flag_has_its_default_and_its_help():
    assert written(TEXT) == TEXT, "run `python -m tests.docs.command_line`"


def test_a_flag_is_shown_with_its_default_its_help_and_marks():
    """The table of a command follows the line that names it; a default of 0 is shown, one that is missing is open."""
    text = "`python -m pipelined simulate NAME` x\n| `--node` | | |\n| `--trace` | | |\n`python -m pipelined bench`\n"
    node, trace = written(text).splitlines()[1:3]
    assert node == "| `--node` | 0 | ranks per node; 0: all ranks on one node |"
    assert trace == "| `--trace` | open | write a Perfetto trace, gzipped if the name ends in .gz |"


def test_every_flag_of_training_is_there():
    assert names(part("## python -m apps.gpt2")) == sorted(flags_of_training())


def test_the_tables_of_training_are_the_groups_of_its_help():
    """Each flag stands below the heading of its group; the settings of schedules below that of the schedule."""
    tables = re.split(r"^### ", part("## python -m apps.gpt2"), flags=re.MULTILINE)[1:]
    shown = {table.partition("\n")[0].lower(): names(table) for table in tables if names(table)}
    knobs = {knob.name for knob in knobs_of()}
    for group, flags in shown.items():
        fields = {name.removeprefix("--").replace("-", "_") for name in flags}
        assert fields - knobs <= {*GROUPS[group]} and (group == SCHEDULE or not fields & knobs)
    assert [*shown] == [group for group in GROUPS if group in shown]


@pytest.mark.parametrize("program", sorted({*ROWS} - {"gpt2 generate"}))
def test_every_flag_of_a_row_of_layers_is_there(program):
    """A program has the shared flags, with the same help unless its own table has them again."""
    flags, shared = flags_of_class(ROWS[program]), flags_of_class(RowFlags)
    own, in_common = (
        names(part(heading)) for heading in (f"## python -m apps.{program}", "## Flags of a row of layers")
    )
    assert in_common == sorted(shared)
    assert {*in_common, *own} == flags.keys()
    assert all(flags[name] == shared[name] for name in {*in_common} - {*own})


@pytest.mark.parametrize("command", RAVNEST)
def test_every_flag_of_a_command_of_ravnest_is_there(command):
    text = part("## python -m apps.ravnest").split(f"`python -m apps.ravnest {command}`")[1]
    text = re.split(r"^`python -m|^###", text, maxsplit=1, flags=re.MULTILINE)[0]
    assert names(text) == sorted(flags_of_class(RAVNEST[command]))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_of_a_command_is_there(command):
    text = part("## python -m pipelined").split(f"`python -m pipelined {command} ")[1].split("`python -m")[0]
    assert names(text) == sorted(flags_of_command(command))


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
