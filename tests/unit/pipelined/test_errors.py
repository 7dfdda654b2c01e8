"""How a message names a setting: as an argument to a caller of the library, as a flag to the reader of a command."""

import pytest

from pipelined.errors import as_flags


@pytest.mark.parametrize(
    ("message", "printed"),
    [
        ("an odd depth (depth: 3); use `depth=2` or 4", "an odd depth (depth: 3); use --depth 2 or 4"),
        ("raise `memory_limit=`, or use more ranks", "raise --memory-limit, or use more ranks"),
        ("leave `pipes=` out", "leave --pipes out"),
        ("`optimizer` returns a list; `await op()`", "`optimizer` returns a list; `await op()`"),
    ],
)
def test_a_setting_in_backquotes_becomes_a_flag(message, printed):
    assert as_flags(message) == printed
