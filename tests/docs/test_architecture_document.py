"""docs/architecture.md names every room of the source tree, and no other."""

import re

import pytest

from tests.launching import ROOT

TEXT = (ROOT / "docs" / "architecture.md").read_text()
PACKAGES = ("apps", "collectives", "pipelined", "transports")


def test_every_room_is_named_once_and_every_room_named_exists():
    rooms = [init.parent.relative_to(ROOT) for name in PACKAGES for init in (ROOT / name).rglob("__init__.py")]
    named = re.findall(r"^\| `([a-z0-9_/]+)/` \|", TEXT, re.MULTILINE)
    assert sorted(named) == sorted(map(str, rooms))


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"`((?:apps|collectives|pipelined|tests|transports)/[\w/.]+)`", TEXT)))
)
def test_every_path_shown_exists(path):
    if "NAME" not in path:
        assert (ROOT / path).exists()


@pytest.mark.parametrize("table, path", re.findall(r"`([A-Z]+)` (?:in|of)\s+\[[\w\\.]+\]\(\.\./([\w/.]+)\)", TEXT))
def test_every_table_of_plug_ins_is_in_the_stated_file(table, path):
    assert re.search(rf"^{table}\b.* = ", (ROOT / path).read_text(), re.MULTILINE)
