"""The reference of the public interface: it is built without a warning, and every public name says what it is."""

import importlib
import inspect
import sys

import pytest

import pipelined as pp
import transports
from tests.absent import absent
from tests.launching import ROOT


def test_the_reference_is_built_and_has_every_public_name(tmp_path, monkeypatch):
    if importlib.util.find_spec("pdoc") is None:
        absent("pdoc is not installed")
    monkeypatch.syspath_prepend(ROOT / "docs")
    try:
        pages = importlib.import_module("reference").build(tmp_path)
    finally:
        sys.modules.pop("reference", None)
    assert [page.name for page in pages] == ["index.html", "swarm.html", "pipelined.html", "transports.html"]
    page = (tmp_path / "pipelined.html").read_text()
    missing = [name for name in pp.__all__ if f'id="{name}"' not in page and name not in ("__version__", "swarm")]
    assert not missing
    assert "pipelines in parallel, each on its own microbatches" in page  # an argument of `train`


@pytest.mark.parametrize("face", [pp, pp.swarm, transports], ids=lambda face: face.__name__)
def test_every_public_name_has_a_docstring(face):
    found = {name: getattr(face, name) for name in face.__all__}
    documented = {name: one for name, one in found.items() if inspect.isroutine(one) or inspect.isclass(one)}
    assert not [name for name, one in documented.items() if not inspect.getdoc(one)]
