"""Whole numbers of a user, and how a message names a setting: as an argument of a call, or as a flag of a command."""

import numpy as np
import pytest

from pipelined.errors import UsageError, as_flags, printable, whole


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


@pytest.mark.parametrize("value", [4, np.int64(4), np.uint8(4)])
def test_a_whole_number_becomes_an_int(value):
    assert type(whole("depth", value, 1)) is int


@pytest.mark.parametrize("value", [True, np.True_, 4.0, np.float64(4), "4", None])
def test_what_is_no_whole_number_is_refused_by_its_name(value):
    with pytest.raises(UsageError, match=r"depth must be a whole number, such as 4 \(got: "):
        whole("depth", value)


def test_a_printed_text_keeps_no_control_characters_but_line_ends_and_tabs():
    assert printable("a\x1b[31mb\r\n\té\x00") == "a\ufffd[31mb\ufffd\n\té\ufffd"
