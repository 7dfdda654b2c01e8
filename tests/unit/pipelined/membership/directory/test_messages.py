"""No field of a request goes unchecked."""

from dataclasses import dataclass

import pytest

from pipelined.membership.directory.limits import DirectoryLimits
from pipelined.membership.directory.messages import NamedRequest, Transact, Watch, WholeNumber

SOUND = [
    (Watch, {"name": 1, "prefix": ("a/", "b/"), "after": 0, "wait": 0.5}),
    (
        Transact,
        {"name": 1, "client": 2, "number": 3, "settled": 2, "expect": {"k": 0}, "put": {}, "delete": ["k"], "lease": 0},
    ),
]


@pytest.mark.parametrize(("kind", "sound", "field"), [(kind, sound, field) for kind, sound in SOUND for field in sound])
def test_every_field_is_checked(kind, sound, field):
    kind(**sound).check(DirectoryLimits())
    with pytest.raises(ValueError, match=r"is no|prefixes are"):
        kind(**{**sound, field: None}).check(DirectoryLimits())


def test_a_new_field_is_checked_whatever_its_name():
    @dataclass(frozen=True)
    class Lock(NamedRequest):
        owner: WholeNumber

    Lock(1, 2).check(DirectoryLimits())
    with pytest.raises(ValueError, match="owner is no whole number"):
        Lock(1, "text").check(DirectoryLimits())


def test_a_class_with_an_unchecked_field_is_refused():
    with pytest.raises(TypeError, match=r"Lock\.owner has no check"):

        class Lock(NamedRequest):
            owner: int
