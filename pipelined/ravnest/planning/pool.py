"""The pool: the PCs that are to train, as `pool.csv` lists them.

    name,ram,bandwidth,flops,reliability
    attic,8G,200mbit,400G,0.99

The last two columns may be missing. RAM takes K, M and G (powers of 1024), bandwidth kbit, mbit and gbit a second,
speed G and T (powers of 1000).
"""

import csv
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipelined.errors import UsageError

BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
RATES = {"kbit": 1e3 / 8, "mbit": 1e6 / 8, "gbit": 1e9 / 8}
SPEEDS = {"": 1.0, "G": 1e9, "T": 1e12}
SECONDS = {"ms": 1e-3, "s": 1.0, "us": 1e-6}
NEEDED = ("name", "ram", "bandwidth")
OPEN = ("flops", "reliability")
NewcomerRole = Literal["backup", "cluster"]
"""What nodes that come while clusters train become first."""
_NUMBER = re.compile(r"(\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+)([A-Za-z]*)")


@dataclass(frozen=True, slots=True)
class PoolNode:
    """One PC.

    Args:
        ram: bytes that it may use for the model.
        bandwidth: bytes a second of its line.
        flops: floating-point operations a second; None: unknown.
        reliability: from 0 to 1, 1 is best; None: unknown.
        delay: seconds that a byte is under way on its line, one way; between two nodes, the longer of both.
    """

    name: str
    ram: int
    bandwidth: float
    flops: float | None = None
    reliability: float | None = None
    delay: float = 0.0

    @property
    def transfer_s(self) -> float:
        """Seconds in which the line moves as many bytes as the RAM has."""
        return self.ram / self.bandwidth


def read_pool(path: Path) -> tuple[PoolNode, ...]:
    """Read a pool.

    Raises:
        UsageError: the file cannot be read, a column or a value is wrong or missing, or as `check_pool`.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets begin a file with a mark
            reader = csv.DictReader(file, skipinitialspace=True)
            reader.fieldnames = columns = [column.strip() for column in reader.fieldnames or ()]
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"cannot read the pool {path} ({error}); name a CSV file with --pool") from error
    if columns and (set(NEEDED) - set(columns) or set(columns) - {*NEEDED, *OPEN} or len(set(columns)) < len(columns)):
        fact = f"{path} has the columns {','.join(columns)}"
        raise UsageError(f"{fact}; a pool has {','.join(NEEDED)} and may have {','.join(OPEN)}")
    nodes = tuple(_read_node(f"{path}, line {number}", row) for number, row in rows)
    check_pool(nodes)
    return nodes


def check_pool(nodes: Iterable[PoolNode]) -> None:
    """Refuse an invalid pool.

    Raises:
        UsageError: no node, a name twice, or a node without RAM or bandwidth.
    """
    names = set()
    for node in nodes:
        if node.name in names:
            raise UsageError(f"two nodes of the pool are called {node.name!r}; give each a name of its own")
        if node.ram <= 0 or node.bandwidth <= 0:
            fact = f"node {node.name!r} has no RAM or no line (RAM: {node.ram}, bandwidth: {node.bandwidth:g})"
            raise UsageError(f"{fact}; give both, or leave the node out")
        names.add(node.name)
    if not names:
        raise UsageError("the pool has no nodes (nodes: 0); list at least one")


def quantity(name: str, text: str, units: Mapping[str, float]) -> float:
    """A number with one of these units.

    Raises:
        UsageError: it is no such number.
    """
    match = _NUMBER.fullmatch(text.strip())
    value = float(match[1]) * units[match[2]] if match and match[2] in units else math.inf
    if math.isinf(value):
        unit_names = ", ".join(filter(None, units))
        raise UsageError(f"{name} {text!r} is no quantity; write a number, with one of the units {unit_names}")
    return value


def _read_node(location: str, row: Mapping[str, str | None]) -> PoolNode:
    name = (row["name"] or "").strip()
    fields = {column: (row.get(column) or "").strip() for column in ("ram", "bandwidth", *OPEN)}
    if not name or None in row or not fields["ram"] or not fields["bandwidth"]:
        fact = (
            f"{location} needs a name, RAM and bandwidth, and no more values than columns (got: {list(row.values())})"
        )
        raise UsageError(f"{fact}; write for example attic,8G,200mbit")
    speed = quantity(f"{location}: flops", fields["flops"], SPEEDS) if fields["flops"] else None
    if speed == 0:
        raise UsageError(f"{location}: a speed of 0 flops trains nothing; leave it empty if it is not known")
    reliability = (
        quantity(f"{location}: reliability", fields["reliability"], {"": 1.0}) if fields["reliability"] else None
    )
    if reliability is not None and reliability > 1:
        raise UsageError(f"{location}: reliability is at most 1 (it is {reliability:g})")
    ram = int(quantity(f"{location}: ram", fields["ram"], BYTES))
    return PoolNode(name, ram, quantity(f"{location}: bandwidth", fields["bandwidth"], RATES), speed, reliability)
