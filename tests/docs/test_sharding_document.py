"""docs/sharding.md: its listings and its first program give what it says; docs/teams.md: its model trains."""

import asyncio
import re
from contextlib import redirect_stdout
from io import StringIO

import numpy as np
import torch

import pipelined as pp
from collectives import Links
from tests.launching import ROOT
from transports.local import world


def programs(document):
    return re.findall(r"^```python\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)


DOCUMENT = (ROOT / "docs" / "sharding.md").read_text()
PROGRAMS = programs(DOCUMENT)


def test_the_model_of_the_readers_own_trains_with_its_operator():
    images, classes = torch.randn(4, 1, 8, 8), torch.randint(10, (4,))
    train, operator = programs((ROOT / "docs" / "teams.md").read_text())
    scope = {"batches": [(images, classes)], "torch": torch, "pp": pp}
    exec(operator, scope)
    exec(train, scope)
    first = scope["done"].losses
    exec(train.replace("lambda: torch.nn.Linear(288, 10)", "Product").replace(",3=1.2.1", ""), scope)
    assert len(first) == len(scope["done"].losses) == 3


def test_the_listings_of_the_paper_lay_out_and_move_what_they_say():
    listings = {}
    exec(PROGRAMS[1], listings)
    placed, cast, boxing = (listings[name] for name in ("placed", "cast", "boxing"))
    assert (placed.mesh.size, {placed.shape(rank) for rank in range(24)}) == (24, {(2, 2)})
    assert [step.name for step in cast.steps] == ["reduce_scatter"] and cast.elements(0) == 1536
    assert [step.name for step in cast.backward.steps] == ["all_gather"]
    assert cast.seconds(Links(alpha=1.0, beta=1.0, gamma=0.0)) == 3 * 1.0 + 4 * 1536

    tensor = np.arange(64.0 * 256).reshape(64, 256)
    whole = asyncio.run(_on_all(32, lambda end: boxing(end, cast.source.local(tensor, end.rank))))
    for rank, piece in enumerate(whole):
        np.testing.assert_array_equal(piece, cast.target.local(tensor, rank))


async def _on_all(ranks, work):
    return await asyncio.gather(*map(work, world(ranks)))


def test_the_program_prints_what_the_document_shows():
    program = PROGRAMS[0]
    shown = re.search(r"It prints [^\n]*\n\n```text\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)[1]
    with redirect_stdout(StringIO()) as printed:
        exec(program, {})
    assert printed.getvalue() == shown
