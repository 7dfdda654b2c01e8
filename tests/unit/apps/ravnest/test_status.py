"""The status of Ravnest as text, JSON and a page, from the directory's records alone."""

import json
from contextlib import AsyncExitStack
from dataclasses import replace
from io import StringIO
from math import prod

import pytest
from rich.console import Console

from apps.common.lm.models.gpt2_presets import layer_shapes
from apps.common.status_page import web
from apps.ravnest.flags.config import RavnestConfig, RavnestTask
from apps.ravnest.status import RAVNEST, sizes_of
from pipelined.aio.clock import VirtualClock
from pipelined.membership.directory import EmbeddedDirectory, serve_directory
from pipelined.membership.polls import DIRECTORY_TIMEOUT_S
from pipelined.ravnest.records.generation import BackupPlace, Continuation, Generation
from pipelined.ravnest.records.nodes import NodeRecord, WaitingNodes
from pipelined.ravnest.records.places import Holder, StagePlace
from pipelined.ravnest.records.progress import ClusterProgress, RoundRecord
from pipelined.ravnest.status import follow_status
from transports import Nursery
from transports.rpc.virtual.network import VirtualNetwork, address_of

pytestmark = pytest.mark.virtual
GENERATION = Generation(4, [[StagePlace(Holder("a", "at a", 1), 0, 2, 2), StagePlace(Holder("b", "at b", 2), 2, 5, 1)]])
NODES = {f"nodes/{name}": NodeRecord(name, f"at {name}", at, 1, 1.0, 0.0) for at, name in enumerate("abc", 1)}
TASK = RavnestTask(RavnestConfig(layers=1, microbatch=4, batch=16), 256, "digest of a text")
RECORDS = {
    **NODES,
    "clusters": GENERATION,
    "progress/0": ClusterProgress(4, 7, 2.5, [1.5, 0.0], 0.25, ""),
    "round": RoundRecord(4, 3),
}


async def seen(records, network=None):
    """The first two looks at a directory with these records."""
    network = network or VirtualNetwork()
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(Nursery())
        serving = tasks.create_task(serve_directory(network.endpoint("directory"), VirtualClock()))
        stack.callback(serving.cancel)
        directory = EmbeddedDirectory(network.endpoint("a"), address_of("directory"), VirtualClock())
        for key, record in records.items():
            await directory.transact({}, {key: record.pack()})
        looks = follow_status(directory, 1.0, sizes_of)
        found = [await anext(looks)]
        network.cut_off("directory")
        found += [await anext(looks), await anext(looks)]
        await looks.aclose()
        network.heal("directory")
        return found


async def test_clusters_and_waiting_nodes_are_shown():
    look, *_ = await seen(RECORDS)
    shown, told = web.page(RAVNEST, look), json.loads(web.to_json(look.to_dict()))
    assert "step 7, loss 2.5000, round 3; waiting: c" in shown and "1.5" in shown and "2-4" in shown
    (cluster,) = told["clusters"]
    assert (told["step"], told["round"], told["waiting"], told["missing"]) == (7, 3, ["c"], [])
    assert cluster["places"][1] == {
        "node": "b",
        "backup": None,
        "layers": [2, 5],
        "microbatches": None,
        "alive": 1,
        "staleness": 0.0,
        "averaged_bytes": None,
    }
    assert (cluster["step"], cluster["loss"], cluster["step_s"], cluster["done"]) == (7, 2.5, 0.25, False)


async def test_on_a_narrow_terminal_the_last_columns_are_left_out_and_no_value_is_cut():
    look, *_ = await seen({**RECORDS, "subject": TASK})
    console = Console(width=60, file=StringIO())
    console.print(RAVNEST.table(look))
    _, names, first, *_ = console.file.getvalue().splitlines()
    assert names.split()[:6] == ["cluster", "step", "loss", "s/step", "stage", "node"] and "averaged" not in names
    assert first.split()[:6] == ["0", "7", "2.5000", "0.25", "0", "a"] and "…" not in console.file.getvalue()


async def test_what_each_place_trained_and_sent_follows_from_steps_and_rounds():
    """Steps of four microbatches; cluster 0 has done steps 0, 2, 4 and 6, and cluster 1 none; three rounds.

    With two clusters a node sends its own bytes in a round.
    """
    rows = [[StagePlace(Holder("a", "at a", 1), 0, 1, 2), StagePlace(Holder("b", "at b", 2), 1, 3, 1)]]
    generation = replace(GENERATION, clusters=[*rows, [StagePlace(Holder("c", "at c", 3), 0, 3, 1)]])
    progress = ClusterProgress(4, 6, 2.5, [1.5, 0.0], 0.25, "")
    look, *_ = await seen({**RECORDS, "clusters": generation, "progress/0": progress, "subject": TASK})
    embedding, *others = (4 * sum(map(prod, shapes.values())) for shapes in layer_shapes(TASK.settings.model(256)))
    places = [place for cluster in look.to_dict()["clusters"] for place in cluster["places"]]
    assert [place["microbatches"] for place in places] == [16, 16, 0]
    sent = [3 * embedding, 3 * sum(others), 3 * (embedding + sum(others))]
    assert [place["averaged_bytes"] for place in places] == sent
    assert f"{sent[1] / 2**20:,.1f}" in web.page(RAVNEST, look)


async def test_a_training_of_another_release_leaves_out_what_cannot_be_counted():
    look, *_ = await seen({**RECORDS, "subject": RoundRecord(1, 1)})
    assert look.to_dict()["clusters"][0]["places"][0]["microbatches"] is None


async def test_the_backup_of_a_place_is_shown_beside_its_node():
    spare = {"nodes/spare": NodeRecord("spare", "at spare", 4, 1, 1.0, 0.0)}
    backed = replace(GENERATION, backups=[BackupPlace(0, 1, Holder("spare", "at spare", 4))])
    look, *_ = await seen({**RECORDS, **spare, "clusters": backed})
    assert look.to_dict()["clusters"][0]["places"][1]["backup"] == "spare"
    assert "spare" in web.page(RAVNEST, look)


async def test_a_lost_node_is_named_and_an_old_round_is_not_shown():
    left = {key: record for key, record in RECORDS.items() if key != "nodes/b"}
    look, *_ = await seen({**left, "round": RoundRecord(2, 9)})
    assert "b left; `train` lets the other clusters go on" in web.page(RAVNEST, look) and look.round == 0


async def test_what_waiting_nodes_and_a_late_cluster_wait_for_is_shown_until_they_have_it():
    late = replace(
        GENERATION,
        clusters=[*GENERATION.clusters, [StagePlace(Holder("d", "at d", 4), 0, 5, 1)]],
        continuation=Continuation(3, late_clusters=1, steps_since_round=[[]]),
    )
    joined = {"nodes/d": NodeRecord("d", "at d", 4, 1, 1.0, 0.0), "waits": WaitingNodes("for more RAM")}
    for rounds, word in enumerate(["the average and the moments of cluster 0", None]):
        look, *_ = await seen({**RECORDS, **joined, "clusters": late, "round": RoundRecord(4, rounds)})
        plain = look.to_dict()
        assert [each["waits_for"] for each in [plain, *plain["clusters"]]] == ["for more RAM", None, word]
        shown = web.page(RAVNEST, look)
        assert "waiting: c (for more RAM)" in shown and ("waits for the average" in shown) == bool(word)


async def test_where_no_node_waits_nothing_is_said_of_it():
    records = {key: record for key, record in RECORDS.items() if key != "nodes/c"}
    look, *_ = await seen({**records, "waits": WaitingNodes("for more RAM")})
    assert look.to_dict()["waits_for"] is None


async def test_before_any_clusters_the_waiting_nodes_are_shown():
    look, *_ = await seen(NODES)
    assert "no clusters yet; waiting: a, b, c" in web.page(RAVNEST, look)
    assert json.loads(web.to_json(look.to_dict()))["clusters"] == []


async def test_the_last_look_stays_while_the_directory_does_not_reply():
    _, second, third = await seen(RECORDS)
    assert (second.age_s, third.age_s) == (pytest.approx(1 + DIRECTORY_TIMEOUT_S, abs=0.1), pytest.approx(6, abs=0.1))
    assert replace(third, age_s=0.0) == replace(second, age_s=0.0)
    assert "the directory does not reply; 6 s ago: step 7" in web.page(RAVNEST, third)
