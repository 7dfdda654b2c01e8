"""docs/architecture.md has every room of the source tree, with the sentence of its docstring, and no other."""

import ast
import re

import pytest

from tests.launching import ROOT

TEXT = (ROOT / "docs" / "architecture.md").read_text()
PACKAGES = ("apps", "collectives", "pipelined", "transports")


def sentence(folder):
    """The first paragraph of a folder's docstring, as a line."""
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    return " ".join(text.partition("\n\n")[0].split())


def test_the_table_has_every_room_with_the_sentence_of_its_docstring():
    rooms = [init.parent for name in PACKAGES for init in (ROOT / name).rglob("__init__.py")]
    expected = {f"| `{room.relative_to(ROOT)}/` | {sentence(room)} |" for room in rooms}
    found = re.findall(r"^\| `[a-z0-9_/]+/` \|.*", TEXT, re.MULTILINE)
    assert set(found) == expected and len(found) == len(expected)


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"`((?:apps|collectives|pipelined|tests|transports)/[\w/.]+)`", TEXT)))
)
def test_every_path_shown_exists(path):
    if "NAME" not in path:
        assert (ROOT / path).exists()


@pytest.mark.parametrize("table, path", re.findall(r"`([A-Z]+)` (?:in|of)\s+\[[\w\\.]+\]\(\.\./([\w/.]+)\)", TEXT))
def test_every_table_of_plug_ins_is_in_the_stated_file(table, path):
    assert re.search(rf"^{table}\b.* = ", (ROOT / path).read_text(), re.MULTILINE)
