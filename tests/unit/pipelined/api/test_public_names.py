"""The public face: every name that it lists is there."""

import pipelined as pp


def test_every_public_name_can_be_had():
    assert [name for name in pp.__all__ if getattr(pp, name, None) is None] == []
    assert set(pp._HOMES) == set(pp.__all__) - {"__version__"}
