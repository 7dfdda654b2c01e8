"""docs/command-line.md has every flag with its default, every command, variable and metrics key, and no other."""

import json
import re
import sys
from dataclasses import fields

import pytest

from apps.gpt2.config import Config, flag
from pipelined.__main__ import COMMANDS, main
from pipelined.process.launch import MPI, SLURM, TORCHRUN
from pipelined.schedules import knobs_of
from tests.launching import ROOT, launched

TEXT = (ROOT / "docs" / "command-line.md").read_text()
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


def shown(default):
    """A default as the document shows it."""
    if default is None or default == ():
        return "open"
    return "off" if default is False else str(default)


def test_every_flag_of_training_is_there_with_its_default():
    found = [row for row in rows(part("## python -m apps.gpt2")) if row[0].startswith("--")]
    flags = {flag(f.name): shown(f.default) for f in fields(Config) if f.name != "knobs"}
    flags |= {knob.flag: shown(knob.default) for knob in knobs_of()}
    assert dict(found) == flags and len(found) == len(flags)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_of_a_command_is_there(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    helped = re.split(r"^  (--[\w-]+)", capsys.readouterr().out, flags=re.MULTILINE)[1:]
    defaults = {flag: re.search(r"\(default:\s(\S+)\)", text) for flag, text in zip(*[iter(helped)] * 2, strict=True)}
    told = part("## python -m pipelined").split(f"`python -m pipelined {command} ")[1].split("`python -m")[0]
    plain = {name: None if cell in ("", "0", "off", "open") else cell for name, cell in rows(told)}
    assert plain == {flag: found and found[1] for flag, found in defaults.items()}


def test_every_variable_is_there():
    names = set(re.findall(r"`([A-Z_]+)`", part("## Environment")))
    launchers = {name for names in (*MPI, SLURM, TORCHRUN) for name in names}
    assert names == {*launchers, "PIPELINED_KEY", "PIPELINED_KEY_FILE", "PIPELINED_NODE"}


@pytest.mark.timeout(120)
def test_every_key_of_the_metrics_is_there(tmp_path):
    plan = str(tmp_path / "plan")
    planning = ["plan", "--costs", "flops=1e9", "--ranks", "2", "--out", plan, *TINY]
    assert main(planning) == 0
    arrangements = ["--schedule", "docs/examples/gems.py"], ["--schedule", "pipedream"], ["--plan", plan]
    lines = [[*TINY, *arrangement, "--metrics", str(tmp_path / "metrics")] for arrangement in arrangements]
    done = launched([sys.executable, "-c", ONE_AFTER_ANOTHER, json.dumps(lines)], timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (tmp_path / "metrics").read_text().splitlines()]
    assert {name for name, _ in rows(part("### Metrics"))} == {key for line in lines for key in line}
