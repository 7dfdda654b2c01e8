"""Measure this machine, beside other software and computed limits: list the programs of benchmarks/, or run one.

A benchmark is a file of benchmarks/, described by the first line of its docstring; only the one that runs is imported.
Benchmarks are in the source tree and are not installed.
"""

import argparse
import ast
import importlib.util
import json
import runpy
import sys
from pathlib import Path

from pipelined.errors import UsageError

PASSES_ON = True
"""Flags that this command does not know go to the program."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.allow_abbrev = False
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="the benchmark to run, with its own flags; without a name all are listed",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> None:
    """Do what the flags say. Under a launcher every rank runs the program.

    Raises:
        UsageError: this installation has no benchmarks, or none of that name. SystemExit: the program's exit code.
    """
    benchmarks = _benchmarks()
    if arguments.name is None:
        if arguments.others:
            flags = " ".join(arguments.others)
            raise UsageError(f"flags without a benchmark to take them ({flags}); name one first")
        print(_listed({name: _summary(path) for name, path in benchmarks.items()}, arguments.json))
        return
    if arguments.name not in benchmarks:
        raise UsageError(f"no benchmark is called {arguments.name!r}; known: {', '.join(benchmarks)}")
    sys.argv[1:] = [*arguments.others, *(["--json"] if arguments.json else [])]
    runpy.run_module(f"benchmarks.{arguments.name}", run_name="__main__", alter_sys=True)


def _benchmarks() -> dict[str, Path]:
    """The programs' files by name."""
    package = importlib.util.find_spec("benchmarks")
    # no origin: a folder of that name that is no package
    folder = Path(package.origin).parent if package and package.origin else None
    files = sorted(folder.glob("[!_]*.py")) if folder else []
    if not files:
        raise UsageError("no benchmarks are here (they are not installed); run this in a checkout of the project")
    return {path.stem: path for path in files}


def _summary(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]


def _listed(summaries: dict[str, str], as_json: bool) -> str:
    if as_json:
        return json.dumps(summaries)
    width = max(map(len, summaries))
    return "\n".join(f"{name:<{width}}  {summary}" for name, summary in summaries.items())
