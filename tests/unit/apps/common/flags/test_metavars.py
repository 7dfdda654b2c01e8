"""Help shows the unit or the form of a value."""

from pathlib import Path
from typing import Annotated, Literal

import pytest

from apps.common.flags.groups import GROUP_OF
from apps.common.flags.metavars import METAVAR_OF, metavar_of


@pytest.mark.parametrize(
    ("name", "kind", "form"),
    [
        ("lease", float, "SECONDS"),
        ("depth", Annotated[int | None, "an alias"], "COUNT"),
        ("tensor", int | Literal["auto"], "COUNT|auto"),
        ("prompt", tuple[str, ...], "[TEXT [TEXT ...]]"),
        ("source", Path, "PATH"),
        ("watch", bool, None),
        ("objective", Literal["transfer", "rate"] | None, None),
    ],
)
def test_a_value_is_shown_by_its_unit_or_else_its_type(name, kind, form):
    assert metavar_of(name, kind) == form


def test_the_table_names_flags_alone():
    assert METAVAR_OF.keys() <= GROUP_OF.keys()
