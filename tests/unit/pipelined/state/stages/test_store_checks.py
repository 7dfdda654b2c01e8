"""A directory with another model's stages is refused; one that others use meanwhile is not."""

import pytest

from pipelined.errors import UsageError
from pipelined.state.stages import store_checks
from pipelined.state.stages.store_checks import stages_of_model
from pipelined.state.stages.versions import SavedStage

OURS, THEIRS = [[SavedStage(step, 0, 1, lineage) for step in (5, 10, 15)] for lineage in ("ours", "theirs")]


def saved(monkeypatch, *looks):
    """What comes of a directory that has these saved stages, look by look: those of our model alone in the second."""
    told = iter(looks)
    monkeypatch.setattr(store_checks, "saved_stages", lambda directory, identity=None: list(next(told)))
    return stages_of_model("there", {})


def test_stages_of_this_model_are_its_own(monkeypatch):
    assert saved(monkeypatch, OURS, OURS) == OURS


def test_stages_of_another_model_are_refused(monkeypatch):
    there = OURS[:1] + THEIRS[:2]
    with pytest.raises(UsageError, match=r"stages of another model \(2 of 3\); give another directory"):
        saved(monkeypatch, there, OURS[:1], there)


def test_what_others_save_or_remove_meanwhile_is_not_strange(monkeypatch):
    assert saved(monkeypatch, OURS[:2], OURS[1:], OURS[1:]) == OURS[1:]


def test_a_directory_that_cannot_be_listed_is_refused(monkeypatch):
    def unlisted(directory, identity=None):
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(store_checks, "saved_stages", unlisted)
    with pytest.raises(UsageError, match=r"directory there cannot be listed .*Stale file handle.*another directory"):
        stages_of_model("there", {})
