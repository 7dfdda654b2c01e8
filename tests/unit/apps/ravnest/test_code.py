"""The digest of code depends on each source file and its place, and on nothing else."""

from types import ModuleType

from apps.ravnest.code import digest_of_sources


def package(folder, **sources):
    """A package at a folder with these sources."""
    (folder / "inner").mkdir(parents=True)
    for name, source in {"__init__": "", **sources}.items():
        (folder / f"{name.replace('inner_', 'inner/')}.py").write_text(source)
    found = ModuleType("own")
    found.__file__ = str(folder / "__init__.py")
    return found


def test_equal_sources_have_one_digest_wherever_they_are(tmp_path):
    one, other = (package(tmp_path / name, a="x = 1\n", inner_b="y = 2\n") for name in ("one", "other"))
    (tmp_path / "other" / "notes.txt").write_text("no code")
    assert digest_of_sources([one]) == digest_of_sources([other])


def test_another_source_or_place_has_another_digest(tmp_path):
    kinds = [{"a": "x = 1\n"}, {"a": "x = 2\n"}, {"b": "x = 1\n"}, {"inner_a": "x = 1\n"}, {"a": "x = 1\n", "b": ""}]
    packages = [package(tmp_path / str(number), **kind) for number, kind in enumerate(kinds)]
    assert len({digest_of_sources([each]) for each in packages}) == len(kinds)
