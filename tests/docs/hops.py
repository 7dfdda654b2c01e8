"""The hops of a document, written as `path/of/file.py:function`, and the functions that a program really calls."""

import ast
import re
import sys

from tests.launching import ROOT, launched

NOTED = """
import sys, threading
def note(frame, event, argument):
    if event == "call":
        called.add(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")
called = set()
"""
"""The start of a program of `called_in`: with `note` as the profile of its threads, `called` has what they called."""


def hops_in(text):
    return re.findall(r"`([\w/]+\.py:\w+)`", text)


def column_of(table, column):
    """The hops of a column, counted from 1; a cell that says "the same" has the hop of the first."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    rows = [line.strip("| ").split(" | ") for line in lines if ".py:" in line]
    cells = [row[1] if row[column].startswith("the same") else row[column] for row in rows]
    return [hop for cell in cells for hop in hops_in(cell)]


def is_defined(hop):
    path, _, name = hop.partition(":")
    nodes = ast.walk(ast.parse((ROOT / path).read_text()))
    return name in {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def called_in(program, *arguments):
    """The functions that a program prints as called, with their files."""
    ended = launched([sys.executable, "-c", program, *arguments], 120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def missing(hops, called):
    return [hop for hop in hops if not any(line.endswith(f"/{hop}") for line in called)]
