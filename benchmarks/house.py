"""What a reader of the source tree meets, counted beside its goals: `python -m benchmarks.house`.

Folders that are too full, files and functions that are too long, circles of imports, constructors that take callables,
avoided words, names in docstrings that the code lacks: all by the syntax tree, in seconds. `--list` names the places.
`--types` runs mypy as well.
"""

import importlib.util
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness.flags import flags
from benchmarks.harness.results import ROOT
from benchmarks.house_rules.counts import Count, counts
from benchmarks.house_rules.tree import Tree
from pipelined.errors import UsageError


@dataclass(frozen=True)
class Options:
    """Count what a reader of the source tree meets."""

    json: bool = False
    """Print JSON, with all places."""
    list: bool = False
    """Name the places below each count that is beyond its goal."""
    types: bool = False
    """Run mypy, too: half a minute, or seconds where its cache is."""
    root: Path = ROOT
    """The checkout that is counted."""


def type_errors(root: Path) -> Count:
    """The errors that mypy finds in the four packages, by the settings of setup.cfg.

    Raises:
        UsageError: mypy is not installed, or did not come to an end of its own.
    """
    if importlib.util.find_spec("mypy") is None:
        raise UsageError("mypy is not installed; install it, or leave out --types")
    command = [sys.executable, "-m", "mypy", "--no-error-summary"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise UsageError(f"mypy ended with code {done.returncode}: {done.stdout}{done.stderr}")
    found = [line for line in done.stdout.splitlines() if ": error:" in line]
    return Count("type errors", len(found), 0, found)


def table(found: list[Count], with_places: bool) -> str:
    """The counts beside their goals, as text."""
    lines = [f"{'count':44} {'is':>9} {'goal':>9}"]
    for count in found:
        goal = "" if count.goal is None else f"{count.goal:9,g}"
        lines.append(f"{count.name:44} {count.number:9,g} {goal:>9}{'' if count.is_met else '  over'}")
        lines += [f"    {place}" for place in count.places if with_places and not count.is_met]
    return "\n".join(lines)


def main() -> int:
    """Run the program; returns the exit code, 0 whatever is counted."""
    options = flags(Options, "house")
    found = counts(Tree(options.root))
    if options.types:
        try:
            found.append(type_errors(options.root))
        except UsageError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    print(json.dumps([asdict(count) for count in found]) if options.json else table(found, options.list))
    return 0


if __name__ == "__main__":
    sys.exit(main())
