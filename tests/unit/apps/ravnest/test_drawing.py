"""The picture of a plan: a box for each stage where its layers stand, a band for each ring, and what both say.

The plan is that of Figure 4: 120 thousand numbers, cut at 60, at 30 and 90, and nowhere.
"""

from itertools import pairwise

import pytest
from matplotlib.patches import Rectangle

from apps.ravnest.drawing import draw, save
from pipelined.errors import UsageError
from pipelined.ravnest.planning.plan import PlannedCluster, PlannedStage, RavnestPlan
from pipelined.ravnest.planning.pool import PoolNode
from pipelined.ravnest.planning.ring_layout import rings_between
from pipelined.ravnest.planning.stage_sizes import LayerSize

LAYERS = (LayerSize(30_000, 0, 0, 0.0),) * 4
CUTS = ([0, 2, 4], [0, 1, 3, 4], [0, 4])
BACKUP = PoolNode("spare", 1, 1.0)


def planned():
    """Nodes a to f; d has a backup."""
    names, clusters = iter("abcdef"), []
    for cuts in CUTS:
        nodes = [PoolNode(next(names), 1, 1.0) for _ in cuts[1:]]
        stages = [
            PlannedStage(node, low, high, 0, alive=7, backup=BACKUP if node.name == "d" else None)
            for node, (low, high) in zip(nodes, pairwise(cuts), strict=True)
        ]
        clusters.append(PlannedCluster(tuple(nodes), tuple(stages)))
    return RavnestPlan(
        tuple(clusters),
        (),
        "exhaustive",
        "transfer",
        LAYERS,
        tuple(rings_between([each.stages for each in clusters], LAYERS)),
    )


@pytest.fixture(scope="module")
def axes():
    (axes,) = draw(planned()).axes
    return axes


def parts(axes, boxes):
    """The rectangles of stages, which have an edge, or the bands of rings, which have none."""
    return [each for each in axes.patches if isinstance(each, Rectangle) and (each.get_linewidth() > 0) == boxes]


def test_each_stage_is_a_box_over_its_layers_in_the_row_of_its_cluster(axes):
    found = [(each.get_x(), each.get_x() + each.get_width(), each.get_y()) for each in parts(axes, boxes=True)]
    rows = sorted({y for _, _, y in found})
    expected = [
        (30_000 * low, 30_000 * high, rows[row]) for row, cuts in enumerate(CUTS) for low, high in pairwise(cuts)
    ]
    assert len(rows) == 3 and found == expected
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cluster 0", "cluster 1", "cluster 2"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first cluster on top


def test_each_box_names_its_node_layers_microbatches_alive_and_backup(axes):
    texts = [text.get_text() for text in axes.texts if "alive" in text.get_text()]
    nodes = "abcdef"
    layers = ["0-1", "2-3", "0-0", "1-2", "3-3", "0-3"]
    expected = [f"{node}\nlayers {held}\n7 alive" for node, held in zip(nodes, layers, strict=True)]
    expected[3] += "\nbackup spare"
    assert texts == expected


def test_each_ring_is_a_band_of_its_own_colour_with_its_bytes(axes):
    bands = parts(axes, boxes=False)
    assert [(band.get_x(), band.get_x() + band.get_width()) for band in bands] == [
        (30_000 * ring, 30_000 * (ring + 1)) for ring in range(4)
    ]
    assert len({band.get_facecolor() for band in bands}) == 4
    assert [text.get_text() for text in axes.texts if "ring" in text.get_text()] == [
        f"ring {ring}\n0.1 MiB" for ring in range(4)
    ]
    assert axes.get_title() == "clusters: 3, by transfer; rings: 4"


def test_a_picture_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot write"):
        save(planned(), tmp_path / "nowhere" / "plan.png")
